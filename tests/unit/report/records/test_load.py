"""Reading records: every kind of folder, and files that are damaged, missing or from elsewhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import records

from manyhands.errors import ConfigError
from manyhands.report import build, results
from manyhands.report.figures import steps_to_target
from manyhands.report.records.fields import clean
from manyhands.report.records.load import parse, read


def write(place: Path, record: Any) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.json").write_text(json.dumps(record))
    return place


def test_reads_a_sweep(tmp_path: Path) -> None:
    sweep = records.sweep(
        tmp_path / "psgd", records.psgd(1), title="T", question="Q?", command="go"
    )
    loaded = read([sweep])
    assert len(loaded.runs) == 16
    assert loaded.problems == ()
    (source,) = loaded.sources
    assert (source.label, source.title, source.question, source.command) == (
        "psgd",
        "T",
        "Q?",
        "go",
    )
    assert source.missing == ()


def test_reads_single_runs_together(tmp_path: Path) -> None:
    folders = [write(tmp_path / str(p), records.record("sync", p)) for p in (1, 2)]
    loaded = read(folders)
    assert [run.workers for run in loaded.runs] == [1, 2]
    assert {run.source for run in loaded.runs} == {"runs"}
    assert [source.title for source in loaded.sources] == [f"2 runs in {tmp_path.name}"]


@pytest.mark.parametrize("inside", [False, True])
def test_one_run_is_titled_by_what_it_is(
    tmp_path: Path, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path / "runs" / "one", records.record("sync", 2))
    (source,) = read([tmp_path / "runs" if inside else place]).sources
    assert source.title == "sync with 2 workers: cnn on mnist"
    monkeypatch.chdir(place)
    assert read([Path()]).sources[0].title == source.title


def test_a_title_counts_the_processes_that_share_a_model(tmp_path: Path) -> None:
    record = records.record("pipeline", 1)
    record["workers"].append({**record["workers"][0], "rank": 1, "role": "stage"})
    loaded = read([write(tmp_path / "a", record)])
    assert loaded.sources[0].title == "pipeline with 2 processes: cnn on mnist"
    alone = read([write(tmp_path / "b", records.record("sequential", 1))])
    assert alone.sources[0].title == "sequential: cnn on mnist"


def test_single_runs_of_several_folders_are_counted(tmp_path: Path) -> None:
    folders = [write(tmp_path / str(p) / "run", records.record("sync", p)) for p in (1, 2)]
    (source,) = read(folders).sources
    assert source.title == "2 runs"


def test_a_sweep_keeps_its_name(tmp_path: Path) -> None:
    (source,) = read([records.sweep(tmp_path / "psgd", records.psgd(1))]).sources
    assert (source.label, source.title) == ("psgd", "")


def test_reads_a_folder_of_runs(tmp_path: Path) -> None:
    for p in (1, 2):
        write(tmp_path / "all" / str(p), records.record("sync", p))
    (tmp_path / "all" / "notes").mkdir()
    loaded = read([tmp_path / "all"])
    assert len(loaded.runs) == 2
    assert loaded.problems == ()
    assert [source.title for source in loaded.sources] == ["2 runs in all"]


def test_evaluations_within_epochs_are_read_in_their_order() -> None:
    record = records.record("sync", 2, epochs=2)
    ends = parse(record, identity="1", where="here").epochs
    row = {"epoch": 1.5, "steps": 7, "examples": 9, "seconds": 0.5, "test_loss": 0.25}
    row |= {"test_accuracy": 0.75, "test_metrics": {"accuracy": 0.75}}
    found = parse(record | {"evaluations": [row]}, identity="1", where="here").epochs
    assert [each.epoch for each in found] == [1, 1.5, 2]
    assert (found[0], found[2]) == ends
    assert (found[1].steps, found[1].seconds, found[1].accuracy) == (7, 0.5, 0.75)


def two_counts() -> Any:
    """Return a record of an older version: worker 0 stopped at 72 steps, others went on to 473."""
    found = records.record("server", 3, epochs=3)
    for row, steps in zip(found["workers"], (72, 455, 473), strict=False):
        row["steps"] = steps
    for row, steps in zip(found["epochs"], (24, 48, 473), strict=True):
        row["steps"] = steps
    found["result"] |= {"steps": 72, "stopped": "target_accuracy", "target_accuracy": 0.9}
    return found


def test_steps_that_were_counted_in_two_ways_are_left_out(tmp_path: Path) -> None:
    loaded = read([write(tmp_path / "old", two_counts())])
    (run,) = loaded.runs
    assert [epoch.steps for epoch in run.epochs] == [None, None, None]
    assert [epoch.accuracy for epoch in run.epochs] != [None, None, None]
    assert steps_to_target.steps(run, 0.5) is None
    (problem,) = loaded.problems
    assert "counts steps in two ways" in problem.message
    whole = two_counts()
    whole["result"]["steps"] = 473
    (run,) = read([write(tmp_path / "new", whole)]).runs
    assert [epoch.steps for epoch in run.epochs] == [24, 48, 473]


def test_names_what_is_damaged_or_missing(tmp_path: Path) -> None:
    sweep = records.sweep(tmp_path / "s", [records.record("sync", p) for p in (1, 2, 3)])
    runs = sorted((sweep / "runs").iterdir())
    (runs[0] / "run.json").write_text('{"schema": 1, "conf')
    (runs[1] / "run.json").unlink()
    for name, content in {"list": "[]", "future": '{"schema": 99}', "empty": ""}.items():
        (sweep / "runs" / name).mkdir()
        (sweep / "runs" / name / "run.json").write_text(content)
    (sweep / "runs" / "bytes").mkdir()
    (sweep / "runs" / "bytes" / "run.json").write_bytes(b"\xff\xfe\x00")
    loaded = read([sweep])
    assert len(loaded.runs) == 1
    told = {Path(problem.where).parent.name: problem.message for problem in loaded.problems}
    assert "damaged" in told[runs[0].name]
    assert "missing" in told[runs[1].name]
    assert "not an object" in told["list"]
    assert "schema 99" in told["future"]
    assert set(told) == {runs[0].name, runs[1].name, "list", "future", "empty", "bytes"}


def test_a_damaged_sweep_file_does_not_hide_its_runs(tmp_path: Path) -> None:
    sweep = records.sweep(tmp_path / "s", [records.record("sync", 2)])
    (sweep / "sweep.json").write_text("{")
    loaded = read([sweep])
    assert len(loaded.runs) == 1
    assert loaded.problems[0].where == "sweep.json"


def test_planned_runs_without_a_record_are_named(tmp_path: Path) -> None:
    planned = [{"id": "000-sync-2"}, {"id": "001-sync-3"}]
    sweep = records.sweep(tmp_path / "s", [records.record("sync", 2)], planned=planned)
    (source,) = read([sweep]).sources
    assert (source.planned, source.missing) == (2, ("001-sync-3",))


def test_nothing_to_read_is_an_error_that_says_where(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        build([tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(ConfigError, match=r"neither run.json nor sweep.json"):
        results([tmp_path])
    assert not (tmp_path / "out").exists()


def test_sweeps_of_one_name_are_told_apart_by_host_then_by_number(tmp_path: Path) -> None:
    def make(place: str, host: str) -> Path:
        return records.sweep(tmp_path / place / "psgd", [records.record("sync", 2, host=host)])

    loaded = read([make("a", "first"), make("b", "second")])
    assert [source.label for source in loaded.sources] == ["psgd (first)", "psgd (second)"]
    loaded = read([make("c", "same"), make("d", "same")])
    assert len({run.source for run in loaded.runs}) == 2


def test_the_same_folder_twice_counts_once(tmp_path: Path) -> None:
    sweep = records.sweep(tmp_path / "s", [records.record("sync", 2)])
    assert len(read([sweep, sweep]).runs) == 1


@pytest.mark.parametrize("value", [None, "x", [], {}, True, math.nan, math.inf, 10**400])
def test_values_of_the_wrong_kind_become_unknown(value: Any) -> None:
    record = records.record("sync", 2)
    record["result"]["accuracy"] = value
    record["workers"][0]["bytes"] = value
    record["epochs"][0]["test_loss"] = value
    run = parse(record, identity="x", where="x")
    assert run.accuracy is None
    assert run.team[0].bytes is None
    assert run.epochs[0].loss is None


@pytest.mark.parametrize(
    "key", ["workers", "epochs", "seconds", "result", "machine", "model", "data", "strategy"]
)
@pytest.mark.parametrize("value", [None, 3, "text", [1, "x", None], {"a": 1}])
def test_a_part_of_the_wrong_kind_never_crashes_the_report(
    tmp_path: Path, key: str, value: Any
) -> None:
    odd = records.record("sync", 2, repeat=1) | {key: value}
    sweep = records.sweep(tmp_path / "s", [records.record("sync", 2), odd])
    table = results([sweep])
    assert len(table.runs) == 2


def test_epochs_count_from_the_beginning_either_way() -> None:
    record = records.record("sync", 2, epochs=3)
    whole = [e.seconds for e in parse(record, identity="x", where="x").epochs]
    each = record["epochs"][0]["seconds"]
    for epoch in record["epochs"]:
        epoch["seconds"] = each
    assert [e.seconds for e in parse(record, identity="x", where="x").epochs] == pytest.approx(
        whole
    )


def test_text_that_xml_cannot_hold_is_replaced() -> None:
    assert clean("a\x00b\x1b\ud800c") == "a\ufffdb\ufffd?c"
