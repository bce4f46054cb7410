"""`manyhands prepare --master spark://…` on a cluster of its own: a master and one worker."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from running import eventually, manyhands

from manyhands.data.manifest import Manifest
from manyhands.data.spark.session import java_version

pytest.importorskip("pyspark", reason="pip install '.[spark]'")
parquet = pytest.importorskip("pyarrow.parquet", reason="pip install '.[spark]'")

if (java_version() or 0) < 17:
    pytest.skip("there is no Java 17 or newer here", allow_module_level=True)

pytestmark = pytest.mark.timeout(300)  # five Java processes start, one after the other

HERE = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
NO_REST = "-Dspark.master.rest.enabled=false"  # it would take a fixed port
RECIPE = """\
name = "rows"
id = "n"
label = "even"
rows_per_part = 100

[sources.rows]
path = "rows.jsonl"
schema = "n INT, x DOUBLE, town STRING"

[[steps]]
derive = { even = "n % 2 = 0" }

[[steps]]
split = { test = 0.25 }

[[steps]]
select = ["even", "x", "town"]

[[steps]]
impute = { x = "mean" }

[[steps]]
one-hot = { town = "learn" }
"""


@contextmanager
def daemon(name, log, *arguments):
    """Run one of Spark's own programs; its log goes into a file."""
    home = Path(find_spec("pyspark").submodule_search_locations[0])
    line = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    with log.open("w") as file:
        running = subprocess.Popen(
            [*line, *arguments, "--host", "127.0.0.1", "--webui-port", "0"],
            stdout=file,
            stderr=file,
            env={**HERE, "SPARK_HOME": str(home), "SPARK_MASTER_OPTS": NO_REST},
        )
        try:
            yield
        finally:
            running.terminate()  # `spark-class` has become Java
            running.wait(timeout=30)


def said(log, pattern):
    """Wait for a line of a log; return what is in its parentheses."""
    found = eventually(lambda: re.search(pattern, log.read_text()))
    assert found, log.read_text()
    return found[1]


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(daemon("master.Master", log, "--port", "0"))
        address = said(log, r"Starting Spark master at (spark://\S+)")
        log = folder / "worker.log"
        options = ["--cores", "2", "--memory", "2g", "--work-dir", str(folder / "work")]
        stack.enter_context(daemon("worker.Worker", log, *options, address))
        said(log, r"(Successfully registered) with master")
        yield address


def prepared(recipe, output, master):
    options = ["--memory", "1g", "--output", output, "--master", master]
    done = manyhands("prepare", recipe, *options, env=HERE)
    assert done.returncode == 0, done.stderr
    return Manifest.read(output)


def test_a_cluster_makes_the_same_parts(master, tmp_path):
    rows = [{"n": n, "x": None if n % 9 == 0 else n / 7, "town": "ABC"[n % 3]} for n in range(500)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    here = prepared(tmp_path / "recipe.toml", tmp_path / "here", "local[2]")
    there = prepared(tmp_path / "recipe.toml", tmp_path / "there", master)
    assert there.made["master"] == master
    assert there.rows("train") + there.rows("test") == 500
    sizes = [[(p.file, p.rows) for side in m.parts.values() for p in side] for m in (here, there)]
    assert sizes[0] == sizes[1]
    for file, _ in sizes[0]:  # the rows are the same; how a file packs them may differ
        one, other = (parquet.read_table(tmp_path / place / file) for place in ("here", "there"))
        assert one.equals(other)
