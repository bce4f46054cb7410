"""Shards: whole or refused, decoded row by row as they were written, streamed exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
import torch
from shards import rows, table, write

from manyhands.config.options import configure
from manyhands.data import Stored, Streamed, store
from manyhands.data.manifest import Manifest, Part, _check_names
from manyhands.data.parquet_shards import _floats, _whole
from manyhands.data.spark.statistics import statistics
from manyhands.data.stored import About
from manyhands.data.streaming import StreamPlan, StreamSplit, window_rows
from manyhands.errors import ConfigError, DataError
from manyhands.launch import atomic_files
from manyhands.training.process.data import plan_for_worker

PARTS = [rows(50, 1), rows(41, 2), rows(60, 3)]
TEST = rows(30, 4)


@pytest.fixture
def shards(tmp_path):
    write(tmp_path / "shards", PARTS, TEST)
    return tmp_path / "shards"


def joined(index, parts=PARTS):
    return np.concatenate([part[index] for part in parts])


def streamed(shards, tmp_path, buffer=40, dtype="float32"):
    folder = store(str(shards), tmp_path / "stored", stream=True)
    return Streamed(folder, About.read(folder), buffer, dtype)


def test_shards_become_the_stored_form_row_by_row(shards, tmp_path):
    data = Stored.open(store(str(shards), tmp_path / "stored"))
    np.testing.assert_array_equal(data.train.x.numpy(), joined(0))
    np.testing.assert_array_equal(data.train.y.numpy(), joined(1))
    np.testing.assert_array_equal(data.ids, joined(2))
    np.testing.assert_array_equal(data.test.x.numpy(), TEST[0])
    assert (data.classes, data.shape, data.name) == (2, (3,), "small")
    assert data.sha256 == Manifest.read(shards).sha256


def test_statistics_over_row_groups_are_those_of_all_training_rows(shards):
    x = joined(0).astype(np.float64)
    found = statistics(shards, Manifest.read(shards))
    for number, name in enumerate(("a", "b", "c")):
        column = x[:, number]
        expected = {
            "mean": column.mean(),
            "std": column.std(),
            "min": column.min(),
            "max": column.max(),
        }
        assert found[name] == pytest.approx(expected, rel=1e-12)


def test_the_hash_tells_other_data(shards, tmp_path):
    before = Manifest.read(shards).sha256
    write(tmp_path / "other", [rows(50, 9), *PARTS[1:]], TEST)
    assert Manifest.read(tmp_path / "other").sha256 != before
    write(tmp_path / "same", PARTS, TEST)
    assert Manifest.read(tmp_path / "same").sha256 == before
    write(tmp_path / "learned", PARTS, TEST, learned=["impute: median of a"])
    assert Manifest.read(tmp_path / "learned").sha256 != before  # or a private run's store is taken


def test_without_a_manifest_nothing_is_taken_for_whole(shards, tmp_path):
    (shards / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"no manifest.json: it was not prepared, or not"):
        store(str(shards), tmp_path / "stored")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(path):
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (flip, r"train-00001.parquet was changed since it was prepared"),
        (shorten, r"train-00001.parquet has \d+ bytes; manifest.json says \d+"),
        (lambda path: path.unlink(), r"train-00001.parquet is missing"),
    ],
)
def test_a_part_that_is_not_itself_is_refused(shards, tmp_path, harm, message, stream):
    harm(shards / "train-00001.parquet")
    with pytest.raises(DataError, match=message):
        store(str(shards), tmp_path / "stored", stream=stream)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["parts"]["train"][0].update(rows=51), "was changed"),
        (lambda m: m.pop("features"), "cannot be understood"),
        (lambda m: m["parts"]["train"][0].update(file="../x.parquet"), "was changed"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(shards, tmp_path, change, message):
    said = json.loads((shards / "manifest.json").read_text())
    change(said)
    (shards / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(DataError, match=message):
        store(str(shards), tmp_path / "stored")


def with_value(column, row, value):
    x, y, keys = (part.copy() for part in PARTS[1])
    if column == "label":
        y[row] = value
    else:
        x[row, 1] = value
    return x, y, keys


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (with_value("b", 37, np.nan), r"train-00001.parquet: row 37 has a feature .* not finite"),
        (with_value("b", 3, np.inf), r"train-00001.parquet: row 3 has a feature .* not finite"),
        (with_value("label", 40, 2), r"train-00001.parquet: row 40 has label 2; expected 0 to 1"),
        (with_value("label", 0, -1), r"train-00001.parquet: row 0 has label -1"),
    ],
)
def test_what_cannot_be_trained_on_is_named_by_file_and_row(tmp_path, part, message):
    write(tmp_path / "shards", [PARTS[0], part], TEST)
    with pytest.raises(DataError, match=message):
        store(str(tmp_path / "shards"), tmp_path / "stored")
    data = streamed(tmp_path / "shards", tmp_path / "streamed")
    with pytest.raises(DataError, match=message):
        list(data.train.slices(0, 91, 10))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (table(*PARTS[1]).drop_columns(["b"]), "has no column 'b'"),
        (
            table(*PARTS[1]).set_column(1, "b", [["text"] * 41]),
            "column 'b' is string; expected floats",
        ),
    ],
)
def test_other_columns_are_refused(tmp_path, made, message):
    write(tmp_path / "shards", PARTS, TEST, tables={1: made})
    with pytest.raises(DataError, match=f"train-00001.parquet.*{message}"):
        store(str(tmp_path / "shards"), tmp_path / "stored")


def test_columns_of_any_width_in_pieces_and_with_gaps_become_arrays():
    for kind in ("f2", "f4", "f8"):
        values = np.array([1.5, -2.0, 0.25], kind)
        column = pyarrow.chunked_array([values[:1], [], values]).slice(1)
        np.testing.assert_array_equal(_floats(column), values.astype(np.float32))
    for kind in ("i1", "i2", "i4", "i8", "u1", "u4"):
        values = np.array([1, 0, 7], kind)
        column = pyarrow.chunked_array([pyarrow.array(values).slice(1), values])
        np.testing.assert_array_equal(_whole(column), [0, 7, 1, 0, 7])
        assert _whole(column).dtype == np.int64
    gaps = pyarrow.chunked_array([[1.0, None]], pyarrow.float32())
    np.testing.assert_array_equal(_floats(gaps), np.array([1, np.nan], np.float32))
    assert _whole(pyarrow.chunked_array([[3, None]])).tolist() == [3, -1]


def test_reading_shards_does_not_import_pandas(shards):
    pytest.importorskip("pandas")
    program = (
        "import sys; from pathlib import Path\n"
        "from manyhands.data.parquet_shards import open_shards\n"
        "reader = open_shards(Path(sys.argv[1])); "
        "assert len(reader.read(reader.groups('train')[0]).x) > 0; "
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(shards)], check=True, timeout=100)


def test_a_damaged_page_is_refused_even_if_its_hash_is_stated(tmp_path):
    shards = tmp_path / "shards"
    write(shards, PARTS, TEST)
    path = shards / "train-00001.parquet"
    content = bytearray(path.read_bytes())
    content[4:120] = b"\xff" * 116
    path.write_bytes(content)
    manifest = Manifest.read(shards)
    parts = [
        replace(p, sha256=atomic_files.sha256(shards / p.file)) for p in manifest.parts["train"]
    ]
    replace(manifest, parts={**manifest.parts, "train": parts}).write(shards)
    with pytest.raises(DataError, match=r"train-00001.parquet, row group 0, is damaged"):
        store(str(shards), tmp_path / "stored")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("window", [20, 60, 1000])
def test_a_streamed_epoch_holds_every_example_once(window, size, whole):
    lengths = np.array([16, 16, 16, 2, 16, 16, 9, 16, 16, 16, 12])
    plans = [
        StreamPlan(
            lengths=lengths, batch_size=12, window=window, rank=r, size=size, seed=5,
            whole_batches=whole,
        )
        for r in range(size)
    ]  # fmt: skip
    shares = [list(plan.epoch(3)) for plan in plans]
    seen = np.concatenate([share.indices for mine in shares for share in mine])
    assert sorted(seen) == list(range(lengths.sum()))
    assert [len(mine) for mine in shares] == [plan.steps(3) for plan in plans]
    if not whole:
        assert len({len(mine) for mine in shares}) == 1
        for step in zip(*shares, strict=True):
            assert {share.total for share in step} == {sum(s.examples for s in step)}
    other = np.concatenate([share.indices for share in plans[0].epoch(4)])
    assert not np.array_equal(other, np.concatenate([s.indices for s in shares[0]]))


def test_a_stream_goes_on_where_it_was(shards, tmp_path):
    plan = StreamPlan(lengths=np.array([16] * 9), batch_size=7, window=40, rank=1, size=2, seed=0)
    whole, rest = list(plan.epoch(2)), list(plan.epoch(2, start=9))
    assert len(rest) == len(whole) - 9
    for a, b in zip(whole[9:], rest, strict=True):
        np.testing.assert_array_equal(a.indices, b.indices)


def test_more_workers_than_row_groups_cannot_stream():
    with pytest.raises(ConfigError, match="4 workers for 3 row groups"):
        StreamPlan(lengths=np.array([5, 5, 5]), batch_size=4, window=9, rank=0, size=4, seed=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("strategy", ["sync", "server"])
def test_streamed_batches_are_the_rows_of_the_shards(shards, tmp_path, strategy, dtype):
    config = configure(
        {"strategy": strategy, "stream": 30, "batch_size": 12, "workers": 2, "dtype": dtype}
    )
    data = streamed(shards, tmp_path, 30, dtype)
    x, y = joined(0), joined(1)
    plan = plan_for_worker(config, data, 1)
    for epoch in (1, 2):
        for share in plan.epoch(epoch):
            got_x, got_y = data.train.batch(share.indices)
            assert got_x.dtype == getattr(torch, dtype)
            np.testing.assert_array_equal(got_x, x[share.indices])
            np.testing.assert_array_equal(got_y, y[share.indices])
    np.testing.assert_array_equal(data.train.batch(np.array([0, 150]))[0], x[[0, 150]])


def test_a_stream_reads_its_own_row_groups_only_and_holds_two_windows(shards, tmp_path):
    data = streamed(shards, tmp_path, 20)
    config = configure({"stream": 20, "batch_size": 10, "workers": 2, "epochs": 1})
    plan, train = plan_for_worker(config, data, 0), data.train
    assert isinstance(train, StreamSplit)
    read = []
    original = train.reader.read
    train.reader.read = lambda group, **how: (read.append(group), original(group, **how))[1]
    for share in plan.epoch(1):
        train.batch(share.indices)
    mine = {train.groups[g] for g in plan.dealt[0]}
    assert set(read) == mine
    assert len(read) == len(mine), "each is decoded once"
    window = window_rows(train.lengths, 20)
    assert len(train._buffer.x) == 2 * (window + 16)


@pytest.mark.parametrize("buffer", [20, 200])
def test_while_an_epoch_ends_the_next_one_is_decoded(shards, tmp_path, buffer):
    data, x = streamed(shards, tmp_path, buffer), joined(0)
    config = configure({"stream": buffer, "batch_size": 10, "workers": 2, "epochs": 3})
    plan = plan_for_worker(config, data, 0)
    told = []
    noting = replace(plan, feed=lambda *windows: (told.append(windows), plan.feed(*windows))[1])
    for epoch in (1, 2, 3):
        for share in noting.epoch(epoch):
            np.testing.assert_array_equal(data.train.batch(share.indices)[0], x[share.indices])
    windows = [(epoch, n) for epoch in (1, 2, 3) for n in range(len(plan.windows(epoch)))]
    ahead = [key for _, following in told for key in following]
    assert ahead == windows[1:], "each is announced once, while the one before is due"
    for due, following in told:
        for (epoch, number), groups in {**due, **following}.items():
            np.testing.assert_array_equal(groups, plan.windows(epoch)[number])
        assert 1 <= len(due) <= 2 - len(following)


def test_a_streamed_test_set_is_judged_in_order(shards, tmp_path):
    data = streamed(shards, tmp_path)
    got = torch.cat([x for x, _ in data.test.slices(5, 29, 7)])
    np.testing.assert_array_equal(got, TEST[0][5:29])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"private": True, "epsilon": 3.0}, "a private run draws Poisson samples of all records"),
        ({"partition": "balanced"}, "streams are divided by row groups"),
        ({"limit": 100}, "limit, validation and shares choose among all rows"),
        ({"validation": 0.1}, "limit, validation and shares choose among all rows"),
        ({"batch_size": 5000}, "a batch has 5000 examples, which it must hold"),
        ({"on_failure": "continue"}, "nobody takes a dead worker's row groups"),
        ({"balance": "speed"}, "partition streamed fixes who sees what"),
    ],
)
def test_what_a_stream_cannot_promise_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        configure({"stream": 1000, **options})


def test_only_shards_are_streamed(tmp_path):
    with pytest.raises(ConfigError, match="stream is given, but data is 'blobs'"):
        store("blobs", tmp_path / "stored", stream=True)


def test_learned_preparations_are_refused_in_private_runs():
    private = {"private": True, "epsilon": 3.0}
    learned = ["impute: median of seats"]
    with pytest.raises(ConfigError, match=r"median of seats.*preprocessing=public"):
        configure(private).privacy.check_data(learned)
    configure({**private, "preprocessing": "public"}).privacy.check_data(learned)
    configure(private).privacy.check_data([])
    configure(private).privacy.check_data(None)


@pytest.mark.parametrize("name", ["../train-0.parquet", "n" * 300, "é" * 200])
def test_a_part_with_a_name_that_no_file_beside_it_has_is_refused(tmp_path, name):
    path = tmp_path / "manifest.json"
    part = Part(file=name, rows=1, bytes=1, sha256="")
    every = SimpleNamespace(every_part=lambda: [("train", part)], rows=lambda side: 1)
    with pytest.raises(DataError, match="expected a file beside it"):
        _check_names(every, path)
