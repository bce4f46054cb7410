"""Your own strategy and all-reduce: what their pages print runs, through every command."""

import ast
import csv
import json
import re
import sys
from pathlib import Path

import pytest
from pages import DOCS, block_with, blocks, commands
from running import MANYHANDS, manyhands, ran, record

import manyhands as mh
from manyhands.config.strategy_table import find_strategy
from manyhands.launch import simulated_cluster

STRATEGY, ALLREDUCE = "how-to/own-strategy.md", "how-to/own-allreduce.md"
NUDGE = blocks(STRATEGY, "python")[0]
FIRST_LINE = "Workers train alone, and move towards their mean every few steps."
SMALL = ["--data", "blobs", "--model", "logistic", "--kernels", "default", "--threads", "1"]
ROOT = Path(__file__).parents[2]


def within(block):
    """Return the methods or fields of a block, which begin behind its imports, and its imports."""
    imports, _, body = block.partition("\n\n")
    return body.lstrip("\n"), imports


def extend(words):
    """Return the page's strategy with the block of methods that has these words."""
    body, imports = within(block_with(STRATEGY, "python", words))
    return f"{imports}\n{NUDGE}\n{body}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the page's strategy in mine.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(NUDGE)
    return tmp_path


def test_the_page_s_command_trains(folder):
    train, _compare = commands(block_with(STRATEGY, "bash", "manyhands compare"))
    done = ran([sys.executable, "-m", *train, "--output", "run"])
    assert done.returncode == 0, done.stderr
    config = record(folder / "run")["config"]
    assert (config["strategy"], config["beta"]) == ("Nudge", 0.3)


def test_the_page_s_comparison_has_its_rows_and_its_first_line(folder):
    _train, compare = commands(block_with(STRATEGY, "bash", "manyhands compare"))
    done = ran([sys.executable, "-m", *compare, "--repeats", "1", "--output", "sweep"])
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((folder / "sweep/results.csv").open()))
    assert {row["beta"] for row in rows if row["strategy"] == "Nudge"} == {"0.1", "0.9"}
    assert {row["strategy"] for row in rows} == {"Nudge", "sequential", "sync", "averaging"}
    page = (folder / "sweep/report.html").read_text()
    assert f"{FIRST_LINE} This strategy is no part of manyhands." in page


def test_the_page_s_python_runs_as_a_script(folder):
    code = block_with(STRATEGY, "python", "mh.compare(")
    short = code.replace("workers=[2])", "workers=[2], repeats=1)")
    assert short != code
    (folder / "script.py").write_text(f"from mine import *\n{short}")
    done = ran([sys.executable, "script.py"])
    assert done.returncode == 0, done.stderr


def test_the_page_s_test_passes(folder):
    (folder / "equal.py").write_text(block_with(STRATEGY, "python", "torch.allclose"))
    done = ran([sys.executable, "equal.py"])
    assert done.returncode == 0, done.stderr


def test_the_page_s_range_and_support_hold(folder):
    fields, imports = within(block_with(STRATEGY, "python", "Range(0.0, 1.0"))
    plain = "    beta: float = 0.5\n    every: int = 4\n"
    assert plain in NUDGE
    (folder / "ranged.py").write_text(f"{imports}\n{NUDGE.replace(plain, fields)}")
    refused = manyhands("train", "--strategy", "ranged.py:Nudge", "--beta", 1.5, *SMALL)
    assert refused.returncode == 2
    assert "beta is 1.5" in refused.stderr
    (folder / "identical.py").write_text(extend("identical=True"))
    assert not find_strategy("mine.py:Nudge")().supports.identical
    assert find_strategy("identical.py:Nudge")().supports.identical


def test_the_page_s_checkpoints_resume_with_the_same_bits(folder):
    (folder / "mine.py").write_text(block_with(STRATEGY, "python", "class Centred"))
    given = {"strategy": "mine.py:Centred", "workers": 2, "kernels": "default"}
    mh.fit("logistic", "blobs", max_steps=40, output="whole", **given)
    mh.fit("logistic", "blobs", max_steps=20, checkpoint_every="10steps", output="part", **given)
    done = manyhands("train", "--resume", "part", "--max-steps", 40)
    assert done.returncode == 0, done.stderr
    weights = [(folder / name / "model.safetensors").read_bytes() for name in ("whole", "part")]
    assert weights[0] == weights[1]


def test_a_prediction_takes_the_page_s_cost(folder):
    line = ["predict", "--strategies", "mine.py:Nudge", "--workers", 2, "--limit", 320, "--json"]
    (folder / "mine.py").write_text(extend("def cost"))
    done = manyhands(*line, *SMALL)
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["rows"] if row["strategy"] == "Nudge"]
    assert [row["workers"] for row in rows] == [1, 2]


@pytest.mark.skipif(
    simulated_cluster.obstacle() is not None,
    reason=f"no simulated hosts: {simulated_cluster.obstacle()}",
)
def test_another_host_need_not_have_the_file(folder):
    # /dev/shm is each host's own: what the first host has there, the second does not see.
    script = 'mkdir /dev/shm/own && mv mine.py /dev/shm/own && exec "$@"'
    train = ["train", "--strategy", "/dev/shm/own/mine.py:Nudge", "--max-steps", "20", *SMALL]
    lab = [*MANYHANDS, "lab", "--hosts", "2", "--", "sh", "-c", script, "sh", *MANYHANDS]
    done = ran([*lab, *train, "--output", folder / "run"])
    assert done.returncode == 0, done.stderr
    run = record(folder / "run")
    assert [worker["host"] for worker in run["workers"]] == ["host1", "host2"]
    assert run["config"]["strategy"] == "Nudge"


@pytest.fixture
def ring(tmp_path, monkeypatch):
    """A working folder with the page's all-reduce in mine.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(blocks(ALLREDUCE, "python")[0])
    return tmp_path


def test_the_page_s_ring_is_the_example():
    def code(text):
        (function,) = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef))
        body = function.body[1:] if ast.get_docstring(function) else function.body
        return [ast.dump(function.args), *map(ast.dump, body)]

    example = (ROOT / "examples/allreduces/ring.py").read_text()
    assert code(blocks(ALLREDUCE, "python")[0]) == code(example)


def test_the_page_s_ring_is_timed_and_trains(ring):
    _check, time, train = commands(block_with(ALLREDUCE, "sh", "manyhands train"))
    done = ran([sys.executable, "-m", *time, "--sizes", "4KB", "--algorithms", "ring"])
    assert done.returncode == 0, done.stderr
    found = json.loads((ring / "allreduce/allreduce.json").read_text())
    own = {r["workers"]: r for r in found if r["algorithm"] == "mine.py:ring"}
    ours = {r["workers"]: r for r in found if r["algorithm"] == "ring"}
    assert sorted(own) == sorted(ours) == [2, 4]
    for workers, each in own.items():
        assert each["correct"]
        assert each["bytes_sent_each"] == ours[workers]["bytes_sent_each"]
    given = [*SMALL, "--workers", "2", "--max-steps", "20", "--output", "run"]
    done = ran([sys.executable, "-m", *train, *given])
    assert done.returncode == 0, done.stderr
    for worker in record(ring / "run")["workers"]:
        assert worker["operations"]["allreduce mine.py:ring"]["calls"] >= 20


def test_the_page_s_python_trains_with_the_ring(ring):
    page = block_with(ALLREDUCE, "python", "mh.fit(")
    small = page.replace('"mlp", "mnist"', '"logistic", "blobs", max_steps=20')
    assert small.count("max_steps=20") == page.count("mh.fit(")
    (ring / "script.py").write_text(small)
    done = ran([sys.executable, "script.py"])
    assert done.returncode == 0, done.stderr


def test_an_all_reduce_that_hangs_is_named_with_its_line(tmp_path):
    code = "def waits(send, recv, comm, op):\n    comm.Recv(recv, (comm.rank + 1) % comm.size)\n"
    (tmp_path / "mine.py").write_text(code)
    line = ["--with", "mine.py:waits", "--workers", 2, "--sizes", "1KB", "--algorithms", "mpi"]
    done = manyhands("allreduce", *line, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.count("has not returned after") == 1  # although both processes say so
    (told,) = (text for text in done.stderr.splitlines() if "has not returned after" in text)
    assert told.startswith("mine.py:waits ")
    assert f"{tmp_path / 'mine.py'}, line 2, in waits: comm.Recv(" in told
    assert told.endswith("try: manyhands check mine.py:waits")


def without_seconds(text):
    return re.sub(r"\d+(\.\d+)? s\b", "… s", text).strip()


def test_check_prints_what_the_page_shows():
    shown = block_with(STRATEGY, "text", "everything required holds")
    target = "examples/strategies/easgd.py:EASGD"
    assert f"`manyhands check {target}` prints (seconds left out):" in (DOCS / STRATEGY).read_text()
    done = manyhands("check", target, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert without_seconds(done.stdout) == shown.strip()
