"""A sweep with made-up runs: what is kept, tried again, refused, and shown."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from records import record

import manyhands
from manyhands import report
from manyhands.errors import ConfigError, ManyhandsError, WorkerError
from manyhands.experiments.sweep import run
from manyhands.experiments.sweep.compare import compare, describe, sweep
from manyhands.experiments.sweep.eta import Estimate
from manyhands.experiments.sweep.experiment_definition import Experiment
from manyhands.experiments.sweep.live_table import duration
from manyhands.privacy.ledger import Ledger
from manyhands.report.records.published import published

BUILD = report.build


class Runs:
    """Stands in for `fit`: notes what it was asked for and writes a made-up record."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.failing: Callable[[dict[str, Any]], BaseException | None] = lambda given: None

    def __call__(self, **given: Any) -> None:
        self.asked.append(given)
        if error := self.failing(given):
            raise error
        config = {k: v for k, v in given.items() if isinstance(v, str | int | float)}
        del config["progress"], config["command"]
        strategy, workers = str(config.pop("strategy")), int(config.pop("workers", 2))
        made = record(strategy, workers, repeat=given["seed"], **config)
        if given["kernels"] != "auto":
            made["kernels"] = {"choice": given["kernels"], "milliseconds": {}, "source": "given"}
        place = Path(given["output"])
        place.mkdir(parents=True)
        (place / "run.json").write_text(json.dumps(made))
        (place / "steps.jsonl").write_text("")
        (place / "model.safetensors").write_bytes(b"model")

    @property
    def seen(self) -> list[str]:
        return [f"{g['strategy']} {g.get('workers')} {g['seed']}" for g in self.asked]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Make up runs, and leave out the report, which takes seconds."""
    made = Runs()
    monkeypatch.setattr(run, "fit", made)
    monkeypatch.setattr(report, "build", lambda folders, output: output / "report.html")
    monkeypatch.delenv("MANYHANDS_PROCESSES", raising=False)
    return made


def small(folder: Path, **about: Any) -> Any:
    given = {"strategies": ["sync"], "workers": [1, 2], "repeats": 2, "progress": False}
    return compare(output=folder, **{**given, **about})


def sweep_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "sweep.json").read_text())  # type: ignore[no-any-return]


def test_a_sweep_writes_its_plan_its_runs_and_the_report(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "build", BUILD)
    table = small(tmp_path / "s")
    assert [(r["strategy"], r["workers"], r["repeats"]) for r in table] == [
        ("sequential", 1, 2),
        ("sync", 1, 2),
        ("sync", 2, 2),
    ]
    about = sweep_json(tmp_path / "s")
    assert about["axes"] == {"workers": [1, 2]}
    assert about["finished"] >= about["started"]
    assert [p["repeat"] for p in about["planned"]] == [0, 0, 0, 1, 1, 1]
    for planned in about["planned"]:
        place = tmp_path / "s" / "runs" / planned["id"]
        assert (place / "run.json").exists()
        assert (place / "steps.jsonl").exists()
        assert not (place / "model.safetensors").exists()
    assert (tmp_path / "s" / "report.html").exists()
    assert (tmp_path / "s" / "results.csv").exists()


def test_models_are_kept_when_asked_for(tmp_path: Path, runs: Runs) -> None:
    small(tmp_path / "s", keep_models=True)
    assert len(list((tmp_path / "s").glob("runs/*/model.safetensors"))) == 6


def test_the_first_run_chooses_the_kernels_of_all(tmp_path: Path, runs: Runs) -> None:
    small(tmp_path / "s")
    assert [given["kernels"] for given in runs.asked] == ["auto"] + ["native"] * 5
    records = [json.loads(p.read_text()) for p in (tmp_path / "s").glob("runs/*/run.json")]
    assert {r["config"]["kernels"] for r in records} == {"native"}
    assert sorted(r["kernels"]["source"] for r in records) == ["given"] * 5 + ["measured"]


def test_kernels_that_are_given_are_left_alone(tmp_path: Path, runs: Runs) -> None:
    small(tmp_path / "s", kernels="default", repeats=1)
    assert {given["kernels"] for given in runs.asked} == {"default"}


class Stopped(ManyhandsError):
    exit_code = 130


class Terminated(ManyhandsError):
    exit_code = 143


@pytest.mark.parametrize(
    ("stop", "kind"),
    [
        (KeyboardInterrupt, KeyboardInterrupt),
        (Stopped, KeyboardInterrupt),
        (Terminated, ManyhandsError),
    ],
)
def test_finished_runs_are_kept(
    tmp_path: Path,
    runs: Runs,
    stop: Callable[[], BaseException],
    kind: type[BaseException],
) -> None:
    def interrupt(given: dict[str, Any]) -> BaseException | None:
        if len(runs.asked) != 3:
            return None
        Path(given["output"]).mkdir(parents=True)
        return stop()

    runs.failing = interrupt
    with pytest.raises(kind) as raised:
        small(tmp_path / "s")
    assert kind is KeyboardInterrupt or getattr(raised.value, "exit_code", 0) == 143
    assert not Path(runs.asked[-1]["output"]).exists()
    assert sweep_json(tmp_path / "s")["finished"] is None
    started = sweep_json(tmp_path / "s")["started"]
    runs.failing = lambda given: None
    small(tmp_path / "s")
    assert runs.seen[:3] == ["sequential 1 0", "sync 1 0", "sync 2 0"]
    assert runs.seen[3:] == ["sync 2 0", "sequential 1 1", "sync 1 1", "sync 2 1"]
    assert {given["kernels"] for given in runs.asked[3:]} == {"native"}
    assert sweep_json(tmp_path / "s")["started"] == started
    small(tmp_path / "s")
    assert len(runs.asked) == 7


def test_a_run_that_is_at_its_very_end_when_the_sweep_is_stopped_is_kept(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(**given: Any) -> None:
        runs(**given)
        if len(runs.asked) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit", late)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "s")
    assert (Path(runs.asked[-1]["output"]) / "run.json").exists()
    small(tmp_path / "s")
    assert len(runs.asked) == 6  # none of them again


@pytest.mark.parametrize(
    ("signum", "kind"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, ManyhandsError),
        (signal.SIGHUP, ManyhandsError),
    ],
)
def test_a_signal_that_a_run_kept_to_itself_stops_the_sweep(
    tmp_path: Path, runs: Runs, signum: int, kind: type[BaseException]
) -> None:
    def swallow(given: dict[str, Any]) -> None:
        before = signal.signal(signum, lambda *_: None)
        signal.raise_signal(signum)
        signal.signal(signum, before)

    runs.failing = swallow
    with pytest.raises(kind) as raised:
        small(tmp_path / "s")
    assert getattr(raised.value, "exit_code", 130) == 128 + signum
    assert runs.seen == ["sequential 1 0"]
    runs.failing = lambda given: None
    small(tmp_path / "s")
    assert len(runs.seen) == 6


def test_more_repeats_and_workers_go_on_from_what_is_there(tmp_path: Path, runs: Runs) -> None:
    small(tmp_path / "s", repeats=1)
    small(tmp_path / "s", repeats=1, workers=[1, 2, 3])
    assert runs.seen == ["sequential 1 0", "sync 1 0", "sync 2 0", "sync 3 0"]


def test_a_folder_with_another_sweep_is_refused(tmp_path: Path, runs: Runs) -> None:
    small(tmp_path / "s")
    with pytest.raises(ConfigError, match=r"holds another sweep .*6 runs.*choose another folder"):
        small(tmp_path / "s", epochs=1)
    assert len(runs.asked) == 6


def test_a_sweep_of_another_machine_is_not_gone_on_with(tmp_path: Path, runs: Runs) -> None:
    small(tmp_path / "s", repeats=1)
    path = tmp_path / "s" / "sweep.json"
    about = sweep_json(tmp_path / "s")
    path.write_text(json.dumps({**about, "machine": {"cpu": "another", "cores": 64}}))
    small(tmp_path / "s", repeats=1)  # nothing is left to run
    path.write_text(json.dumps({**about, "machine": {"cpu": "another", "cores": 64}}))
    with pytest.raises(ConfigError, match=r"begun elsewhere \(cpu another, cores 64"):
        small(tmp_path / "s", repeats=2)


def test_a_folder_with_other_things_is_refused(tmp_path: Path, runs: Runs) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds other things \(thesis\.tex\)"):
        small(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_sweep_that_runs_has_its_folder_alone(tmp_path: Path, runs: Runs) -> None:
    told: list[str] = []

    def begin_again(given: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=r"in use by process \d+ on") as refused:
            small(tmp_path / "s")
        told.append(str(refused.value))

    runs.failing = begin_again
    small(tmp_path / "s", repeats=1)
    assert len(told) == 3
    assert not (tmp_path / "s" / ".lock").exists()
    runs.failing = lambda given: WorkerError("boom")
    with pytest.raises(ManyhandsError, match="none of the"):
        small(tmp_path / "t")
    assert not (tmp_path / "t" / ".lock").exists()


def test_a_file_of_the_user_s_beside_a_failed_run_stays(tmp_path: Path, runs: Runs) -> None:
    runs.failing = lambda given: WorkerError("boom") if given.get("workers") == 2 else None
    small(tmp_path / "s", repeats=1)
    (place,) = (tmp_path / "s" / "runs").glob("sync-2-*")
    (place / "notes.txt").write_text("why it failed")
    with suppress(FileExistsError):  # made-up runs want a new folder
        small(tmp_path / "s", repeats=1)
    assert (place / "notes.txt").read_text() == "why it failed"


@pytest.mark.parametrize("name", ["sweep.json", "runs"])
def test_a_sweep_does_not_write_through_links(tmp_path: Path, runs: Runs, name: str) -> None:
    small(tmp_path / "s", repeats=1)
    (tmp_path / "s" / name).rename(tmp_path / name)
    (tmp_path / "s" / name).symlink_to(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name} is a symbolic link"):
        small(tmp_path / "s", repeats=2)
    assert len(runs.asked) == 3


def test_a_damaged_plan_is_refused(tmp_path: Path, runs: Runs) -> None:
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read; choose another folder"):
        small(tmp_path)


@pytest.mark.parametrize("error", [WorkerError("rank 1 failed: boom"), RuntimeError("boom")])
def test_a_failing_run_is_listed_and_tried_again(
    tmp_path: Path, runs: Runs, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.failing = lambda given: error if given.get("workers") == 2 else None
    experiment = Experiment(strategies=("sync",), options={"workers": (1, 2)}, repeats=1)
    found = sweep(experiment, output=tmp_path / "s")
    assert list(found.failed) == ["sync × 2 (repeat 1)"]
    assert "boom" in found.failed["sync × 2 (repeat 1)"]
    assert "sync × 2 (repeat 1): failed: " in capsys.readouterr().err
    assert [row["workers"] for row in found.table] == [1, 1]
    runs.failing = lambda given: None
    assert sweep(experiment, output=tmp_path / "s", progress=False).failed == {}
    assert runs.seen == ["sequential 1 0", "sync 1 0", "sync 2 0", "sync 2 0"]


def test_a_sweep_without_any_result_is_an_error(tmp_path: Path, runs: Runs) -> None:
    runs.failing = lambda given: WorkerError("boom")
    with pytest.raises(ManyhandsError, match=r"none of the 6 runs finished; sequential .*boom"):
        small(tmp_path / "s")


def test_without_an_output_the_same_comparison_has_the_same_folder(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small(None)  # type: ignore[arg-type]
    small(None)  # type: ignore[arg-type]
    small(None, epochs=1)  # type: ignore[arg-type]
    assert len(list((tmp_path / "runs").glob("compare-*"))) == 2
    assert len(runs.asked) == 12


def test_objects_are_carried_to_every_run(tmp_path: Path, runs: Runs) -> None:
    class Mine:
        name = "my-data"

    def network() -> None:
        """Stand in for a model's factory."""

    data = Mine()
    compare(
        network,
        data,
        strategies="sync",
        workers=2,
        repeats=1,
        output=tmp_path / "s",
        progress=False,
    )
    assert all(given["model"] is network and given["data"] is data for given in runs.asked)
    assert sweep_json(tmp_path / "s")["planned"][0]["config"]["model"] == "network"
    assert sweep_json(tmp_path / "s")["planned"][0]["config"]["data"] == "my-data"


def test_plain_lines_say_what_each_run_gave(
    tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path / "s", progress=True, repeats=1)
    begin, *lines = capsys.readouterr().err.splitlines()
    assert begin == "[0/3] now sequential (repeat 1)"
    assert lines[0].startswith("[1/3] sequential (repeat 1): ")
    assert "speed-up 1.00" in lines[0]
    assert lines[0].endswith(" left; now sync × 1 (repeat 1)")
    assert lines[2].startswith("[3/3] sync × 2 (repeat 1): ")
    assert "; leading: " in lines[1]
    assert lines[2].endswith(" %")


def test_a_terminal_shows_a_table_with_a_bar_and_the_time_left(
    tmp_path: Path, runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    runs.failing = lambda given: WorkerError("boom") if given["workers"] == 1 else None
    small(tmp_path / "s", progress=True, baseline=False)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r"runs +time +speed-up +judged by", shown)
    assert re.search(r"sync × 1 \(2 failed\) +0", shown)
    assert re.search(r"sync × 2 +2 +[0-9.]+ s +accuracy 98", shown)
    assert re.search(r"━ 4 of 4 runs *\n", shown)


def test_compare_does_not_start_inside_a_group(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "0")
    with pytest.raises(ConfigError, match="without mpiexec"):
        small(tmp_path / "s")


def test_by_default_all_strategies_and_as_many_workers_as_cores() -> None:
    found = describe(None, quick=False, strategies=None, options={})
    assert found.strategies == ("all",)
    assert found.options["workers"][0] == 1
    alone = describe(None, quick=False, strategies=["sequential"], options={})
    assert "workers" not in alone.options


def test_quick_needs_a_file() -> None:
    with pytest.raises(ConfigError, match="quick is given without an experiment's file"):
        describe(None, quick=True, strategies=None, options={})


def test_compare_is_public() -> None:
    assert manyhands.compare is compare


def config(**given: Any) -> dict[str, Any]:
    return {"strategy": "sync", "workers": 1, "epochs": 1, "batch_size": 32, **given}


def ended(training: float, total: float) -> dict[str, Any]:
    return {"status": "finished", "seconds": {"training": training, "total": total}}


def test_time_is_estimated_from_what_was_measured() -> None:
    estimate = Estimate(cores=2)
    assert estimate.seconds(config()) is None
    estimate.note(config(strategy="sequential"), ended(10, 14))
    assert estimate.seconds(config(workers=1)) == pytest.approx(14)
    assert estimate.seconds(config(workers=2)) == pytest.approx(9)
    assert estimate.seconds(config(workers=4)) == pytest.approx(5 + 8)
    assert estimate.seconds(config(epochs=3)) == pytest.approx(34)
    estimate.note(config(workers=2), ended(8, 12))
    assert estimate.seconds(config(workers=2)) == pytest.approx(12)
    assert estimate.seconds(config(workers=1)) == pytest.approx(16 + 4)


def test_a_failed_run_teaches_nothing() -> None:
    estimate = Estimate(cores=2)
    estimate.note(config(), {"status": "failed"})
    assert estimate.seconds(config()) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.4, "3 s"), (89, "89 s"), (200, "3 min"), (7500, "2 h 5 min")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_a_failed_private_run_spent_stays_on_the_account(tmp_path: Path, runs: Runs) -> None:
    terms = {"steps": 40, "rate": 0.01, "noise_multiplier": 2.0, "clip": 1.0, "delta": 1e-5}

    def spend(given: dict[str, Any]) -> BaseException:
        place = Path(given["output"])
        place.mkdir(parents=True)
        ledger = Ledger.begin(place / "ledger-0.jsonl", run="r", limit=40, terms=terms)
        ledger.pay(3)
        return WorkerError("a record of the training set is told here")

    private = {"strategies": ["sync"], "workers": 2, "private": True, "noise_multiplier": 2.0}
    asked: dict[str, Any] = {**private, "repeats": 1, "baseline": False}
    runs.failing = spend
    for _ in range(2):
        with suppress(ManyhandsError):
            compare(output=tmp_path / "s", **asked)
    (kept,) = (tmp_path / "s" / "runs").glob("*.spent-1")
    record = json.loads((kept / "run.json").read_text())
    assert record["privacy"]["steps"] == 40
    assert (kept / "ledger-0.jsonl").exists()
    runs.failing = lambda given: None
    compare(output=tmp_path / "s", **asked)
    assert len(list((tmp_path / "s" / "runs").glob("*.spent-*"))) == 2


def test_the_message_of_a_private_run_without_terms_is_not_shown() -> None:
    failed = {"status": "failed", "config": {"private": True}, "error": "row 17 is bad"}
    assert "row 17" not in json.dumps(published(failed))
