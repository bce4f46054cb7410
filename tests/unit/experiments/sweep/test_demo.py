"""`manyhands demo`: what it compares on machines of several sizes, and what it shows meanwhile."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from records import record

from manyhands import report
from manyhands.cli.app import main
from manyhands.config import core_counts
from manyhands.config.parse import parse_evaluate_every
from manyhands.experiments.sweep import plan, run
from manyhands.experiments.sweep.eta import Estimate
from manyhands.experiments.sweep.experiment_definition import DEMO, Experiment, read
from manyhands.experiments.sweep.live_table import LiveTable
from manyhands.experiments.sweep.plan import Schedule, make_schedule
from manyhands.strategies import STRATEGIES

CORES = (1, 2, 4, 16)


def pretend(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plan, core_counts):
        monkeypatch.setattr(module, "cores", lambda: cores)


def planned(cores: int, monkeypatch: pytest.MonkeyPatch) -> Schedule:
    pretend(cores, monkeypatch)
    return make_schedule(read(DEMO))


@pytest.mark.parametrize("cores", CORES)
def test_every_strategy_uses_the_cores(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = planned(cores, monkeypatch).runs
    most = dict.fromkeys(STRATEGIES, 0)
    for one in runs:
        most[one.config["strategy"]] = max(most[one.config["strategy"]], one.config["workers"])
    assert most.pop("sequential") == 1
    halves = {"pipeline", "tensor"}  # each worker of theirs is two processes
    late = {"hogwild", "server"}  # with many workers their gradients come too late to learn
    assert {n: most[n] for n in late} == dict.fromkeys(late, min(cores, 4))
    others = {n: w for n, w in most.items() if n not in late}
    assert others == {n: max(1, cores // 2) if n in halves else cores for n in others}
    scaling = [r.config["workers"] for r in runs if r.config["strategy"] == "sync" if not r.repeat]
    assert scaling == ([n for n in (2, 4, 8, 16) if n <= cores] or [1])  # sequential is one


def test_repeats_are_interleaved_and_share_one_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = planned(16, monkeypatch).runs
    assert min(Counter(one.case for one in runs).values()) >= 2
    assert [one.repeat for one in runs] == sorted(one.repeat for one in runs)
    assert len({one.baseline for one in runs}) == 1


def test_every_curve_has_eight_points(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in planned(16, monkeypatch).runs:
        every = parse_evaluate_every(one.config["evaluate_every"])
        assert every.epochs is not None
        assert one.config["epochs"] / every.epochs >= 8


class Runs:
    """Stands in for `fit`: made-up records, sync less accurate and faster than the others."""

    def __init__(self) -> None:
        self.commands: set[str] = set()

    def __call__(self, **given: Any) -> None:
        self.commands.add(given["command"])
        config = {n: v for n, v in given.items() if isinstance(v, str | int | float)}
        strategy, workers = str(config.pop("strategy")), int(config.pop("workers", 1))
        made = record(strategy, workers, repeat=given["seed"], **config)
        if strategy == "sync":
            made["result"] |= {"accuracy": 0.5, "seconds": 0.1}
        place = Path(given["output"])
        place.mkdir(parents=True)
        (place / "run.json").write_text(json.dumps(made))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(run, "fit", made)
    pretend(2, monkeypatch)
    monkeypatch.setattr(report, "build", lambda folders, output: output / "report.html")
    return made


def test_it_says_what_runs_what_is_left_and_what_leads(
    tmp_path: Path,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/bin/manyhands", "demo"])
    with suppress(SystemExit):
        main(["demo"])
    shown = capsys.readouterr()
    first, second, *_, before, last = shown.err.splitlines()[1:]
    total = len(make_schedule(read(DEMO)).runs)
    assert first == f"[0/{total}] now sequential (repeat 1)"
    assert second.startswith(f"[1/{total}] sequential (repeat 1): ")
    assert second.endswith(" left; now sync × 2 (repeat 1)")
    assert last.startswith(f"[{total}/{total}] server × 2 (repeat 2): ")
    assert "leading" not in last  # the report says what is best
    leading = before.partition("; leading: ")[2]
    assert leading
    assert "sync" not in leading  # it is faster, but far less accurate
    assert "now" not in last
    assert shown.out.rstrip().endswith("report: demo/report.html")
    assert runs.commands == {"manyhands demo"}


def test_equal_steps_of_unequal_work_are_shown_by_rate() -> None:
    work = {"model": ("cnn",), "data": ("mnist",), "max_steps": (300,), "workers": (2,)}
    schedule = make_schedule(Experiment(strategies=("server",), repeats=1, options=work))
    board = LiveTable(schedule, "strong", Estimate(2), shown=False)
    one, server = schedule.runs
    for planned, examples in ((one, 30_000), (server, 60_000)):
        made = record(planned.config["strategy"], planned.config["workers"])
        made["result"] |= {"seconds": 10.0, "examples_per_second": examples / 10}
        board.keep(planned, made)
    assert [board.speedup(run) for run in (one, server)] == [1, 2]


def test_nothing_leads_before_two_configurations_have_ended() -> None:
    schedule = make_schedule(read(DEMO))
    board = LiveTable(schedule, "strong", Estimate(2), shown=False)
    assert board.leading() is None
    board.keep(schedule.runs[0], record("sequential", 1))
    assert board.leading() is None
