"""Aggregation: groups, medians, speed-ups, targets and the best configuration."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import records
from report_cases import summary, timed

from manyhands.report import build, results
from manyhands.report.analysis.spread import Spread
from manyhands.report.analysis.summary import Summary
from manyhands.report.output.results_table import Table


def labels(found: Summary) -> list[str]:
    return [group.label for group in found.groups]


def test_repeats_become_a_median_and_a_range() -> None:
    runs = [
        timed("sync", 2, t, a, repeat=i) for i, (t, a) in enumerate([(9, 0.9), (1, 1), (4, 0.8)])
    ]
    (row,) = summary(*runs).rows
    assert row.seconds == Spread(4, 1, 9, 3)
    assert row.accuracy is not None
    assert row.accuracy.half == pytest.approx(0.1)


def test_one_repeat_has_no_spread() -> None:
    (row,) = summary(timed("sync", 2, 1)).rows
    assert row.seconds is not None
    assert row.seconds.half is None


def test_speedup_is_against_the_sequential_run_and_the_own_one() -> None:
    found = summary(timed("sequential", 1, 12), timed("sync", 1, 15), timed("sync", 4, 5))
    last = found.rows[-1]
    assert last.speedup == pytest.approx(2.4)
    assert last.own_speedup == pytest.approx(3)
    assert last.efficiency == pytest.approx(0.6)


def test_speedup_is_against_the_sequential_run_with_the_same_learning_rate() -> None:
    found = summary(
        timed("sequential", 1, 30, lr=0.1), timed("sequential", 1, 10, lr=0.01),
        timed("sync", 2, 5, lr=0.01), timed("sync", 2, 5, lr=0.1),
    )  # fmt: skip
    mine = {row.runs[0].config["lr"]: row.speedup for row in found.rows if row.workers == 2}
    assert mine == {0.01: pytest.approx(2), 0.1: pytest.approx(6)}


def test_without_a_sequential_run_only_the_own_speedup_is_known() -> None:
    last = summary(timed("sync", 1, 15), timed("sync", 4, 5)).rows[-1]
    assert last.speedup is None
    assert last.shown_speedup == pytest.approx(3)


def test_a_sequential_run_of_another_task_is_no_baseline() -> None:
    found = summary(timed("sequential", 1, 12, batch_size=32), timed("sync", 4, 5))
    assert found.rows[-1].speedup is None


def test_a_server_that_waits_for_all_is_held_against_as_many_examples_an_update() -> None:
    alone = [timed("sequential", 1, t, batch_size=b) for t, b in ((30, 64), (24, 128))]
    apart = timed("server", 2, 10, batch_size=64, staleness=None)
    waits = timed("server", 2, 12, batch_size=64, staleness=0)
    found = {r.runs[0].config.get("staleness"): r for r in summary(*alone, apart, waits).rows[2:]}
    assert found[None].speedup == pytest.approx(3)
    assert found[0].speedup == pytest.approx(2)


def test_each_batch_size_has_its_own_baseline() -> None:
    runs = [
        timed(s, p, t * b, batch_size=b)
        for b in (32, 64)
        for s, p, t in (("sequential", 1, 10), ("sync", 2, 5))
    ]
    rows = [row for row in summary(*runs).rows if row.group.strategy == "sync"]
    assert [row.speedup for row in rows] == [2, 2]


def test_masters_count_in_the_efficiency() -> None:
    found = summary(timed("sequential", 1, 12), timed("server", 2, 6, masters=2))
    assert found.rows[-1].efficiency == pytest.approx(2 / 4)


def test_curves_are_split_by_what_varies_within_a_strategy() -> None:
    found = summary(
        *[timed("sync", p, 5, allreduce=a) for a in ("ring", "naive") for p in (2, 4)],
        *[timed("averaging", p, 5) for p in (2, 4)],
    )
    assert labels(found) == ["sync · ring", "sync · naive", "averaging"]


def test_an_option_that_differs_between_strategies_only_splits_nothing() -> None:
    assert labels(summary(timed("sync", 2, 5), timed("averaging", 2, 5))) == ["sync", "averaging"]


def test_masters_make_curves_even_where_they_go_with_the_workers() -> None:
    runs = [timed("server", w, 5, masters=m) for m, w in ((2, 2), (2, 6), (4, 4), (4, 12))]
    assert labels(summary(*runs)) == ["server · masters 2", "server · masters 4"]


def test_seeds_and_names_make_no_curves() -> None:
    runs = [timed("sync", 2, 5, repeat=i, name=str(i), output=str(i)) for i in range(3)]
    (row,) = summary(*runs).rows
    assert len(row.runs) == 3


def test_another_number_can_run_along_the_axis() -> None:
    found = summary(*[timed("sequential", 1, n / 100, limit=n) for n in (1000, 2000)])
    assert found.layout.x == "limit"
    assert [row.x for row in found.rows] == [1000, 2000]
    assert found.best is None


def test_weak_scaling_is_seen_from_the_examples_and_measured_by_rate() -> None:
    runs = [timed("sync", p, 10 + p, weak=True, limit=1000 * p) for p in (1, 2, 4)]
    found = summary(*runs)
    assert found.scaling == "weak"
    assert labels(found) == ["sync"]
    assert found.rows[-1].shown_speedup == pytest.approx(4 * 11 / 14)
    assert {fit.law for fit in found.fits.values()} == {"Gustafson"}


def test_equal_steps_of_unequal_work_are_compared_by_rate() -> None:
    runs = []
    for strategy, workers, batches in (("sequential", 1, 1), ("sync", 4, 1), ("server", 4, 4)):
        run = timed(strategy, workers, 10, max_steps=300, batch_size=100)
        run["result"] |= {"examples": 30_000 * batches, "stopped": "max_steps"}
        runs.append(run)
    found = summary(*runs)
    assert {row.label: row.shown_speedup for row in found.rows} == {
        "sequential": 1, "sync": 1, "server": 4,
    }  # fmt: skip
    assert found.choice is not None
    assert found.choice.measure == "examples per second"
    assert found.choice.leader.label == "server"
    for run in runs:
        del run["config"]["max_steps"]  # a target may end runs after different numbers of examples
    assert {row.shown_speedup for row in summary(*runs).rows} == {1}


def test_the_best_is_the_fastest_that_is_accurate_enough() -> None:
    cases = (("sequential", 1, 12, 0.985), ("sync", 2, 6, 0.98), ("averaging", 2, 5, 0.97))
    found = summary(
        *[timed(*case[:2], case[2] + 0.1 * i, case[3], repeat=i) for case in cases for i in (0, 1)]
    )
    assert found.best is not None
    assert found.best.label == "sync"
    assert [row.best for row in found.rows] == [False, True, False]
    assert found.choice is not None
    assert "one percentage point" in found.choice.rule
    once = summary(*[timed(*case) for case in cases])
    assert once.best is None  # one run of each does not support it
    assert [row.leads for row in once.rows] == [False, True, False]


def test_with_a_target_the_best_is_the_first_there_in_every_repeat() -> None:
    runs = []
    for repeat in range(2):
        for strategy, to in (("sync", 5.0), ("averaging", 3.0 if repeat else None)):
            run = timed(strategy, 2, 6, repeat=repeat, accuracy=0.97 if to else 0.9)
            run["result"] |= {"target_accuracy": 0.96, "seconds_to_target": to}
            for epoch in run["epochs"]:
                epoch["test_accuracy"] = 0.5
            runs.append(run)
    found = summary(*runs)
    assert (found.target, found.target_given) == (0.96, True)
    assert found.best is not None
    assert found.best.label == "sync"
    averaging = next(row for row in found.rows if row.label == "averaging")
    assert (averaging.to_target, averaging.reached) == (None, 1)


def test_without_a_target_one_is_taken_that_half_of_them_reach() -> None:
    found = summary(*[timed("sync", p, 5, a) for p, a in ((1, 0.91), (2, 0.948), (3, 0.99))])
    assert found.target == pytest.approx(0.945)
    assert not found.target_given


def test_failed_runs_are_kept_apart() -> None:
    failed = timed("sync", 2, 5) | {"status": "failed", "error": "rank 1: boom"}
    found = summary(timed("sync", 1, 5), failed)
    assert len(found.rows) == 1
    assert [run.error for run in found.failed] == ["rank 1: boom"]


def test_results_are_dictionaries_and_a_data_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = results([records.sweep(tmp_path / "psgd", records.psgd(2))])
    assert len(table) == 16
    assert table[0]["strategy"] == "sequential"
    assert sum(row["leads"] for row in table) == 1
    frame = table.to_pandas()
    assert list(frame.columns) == list(table.columns)
    assert isinstance(frame, pandas.DataFrame)
    assert len(table.runs) == 32


def test_csv_has_every_row_and_no_formulas(tmp_path: Path) -> None:
    runs = [records.record("sync", 2), records.record("sync", 3) | {"name": "=cmd()"}]
    build([records.sweep(tmp_path / "s", runs)], tmp_path / "out")
    with (tmp_path / "out" / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["sync-2", "'=cmd()"]
    with (tmp_path / "out" / "results.csv").open(newline="") as file:
        assert [row["workers"] for row in csv.DictReader(file)] == ["2", "3"]


@pytest.mark.parametrize("text", ["a\0b", "a\rb", "a\r\nb", 'a"b', "a,b", " a ", "ä"])
def test_csv_is_the_same_with_every_version_of_python(tmp_path: Path, text: str) -> None:
    """Python 3.10 cannot write NUL, nor read it; 3.13 alone quotes a carriage return."""
    Table([{"name": text, "n": 1}, {"name": None, "n": 0.5}]).to_csv(tmp_path / "one.csv")
    with (tmp_path / "one.csv").open(newline="", encoding="utf-8") as file:
        written = file.read()
    shown = text.replace("\0", "\ufffd")
    quoted = '"' + shown.replace('"', '""') + '"' if set(shown) & set(',"\r\n') else shown
    assert written == f"name,n\n{quoted},1\n,0.5\n"
    rows = list(csv.DictReader(io.StringIO(written, newline="")))
    assert [row["name"] for row in rows] == [shown, ""]


def test_an_option_that_older_records_lack_makes_no_curve() -> None:
    assert labels(summary(timed("sync", 1, 5), timed("sync", 2, 3, keep=3))) == ["sync"]


def test_what_befell_a_run_is_told() -> None:
    from manyhands.report.sections.problems import problems

    heirs = [{"layers": ["fc1", "fc2", 7], "by": 2}, {"layers": "fc3"}, None]
    died = {"lost": [1, 3], "step": 45, "workers": 2, "taken_over": heirs}
    story = [{"resumed_from": 40}, died, {"lost": "x"}, 7]
    (told,) = problems(summary(timed("sync", 4, 9) | {"story": story}, timed("sync", 2, 9)))
    assert "lost workers" in told["title"]
    resumed, lost = told["lines"]
    assert resumed.endswith(": resumed from step 40")
    went = ": rank 1 and 3 died; 2 workers went on from step 45; rank 2 took over fc1 and fc2"
    assert lost.endswith(went)
    assert problems(summary(timed("sync", 2, 9))) == []


def test_a_rate_that_followed_another_length_is_told() -> None:
    from manyhands.report.sections.problems import problems

    story = [{"resumed_from": 16, "planned": {"epochs": 1, "max_steps": 40}}]
    (told,) = problems(summary(timed("sync", 4, 9) | {"story": story}, timed("sync", 2, 9)))
    (line,) = told["lines"]
    assert line.endswith("the learning rate was that of a run of 1 epoch, at most 40 steps")


def test_where_too_few_were_left_nobody_is_said_to_have_gone_on() -> None:
    from manyhands.report.sections.problems import problems

    died = {"lost": [1], "workers": 1, "step": 45, "min_workers": 2}
    (told,) = problems(summary(timed("sync", 4, 9) | {"story": [died]}, timed("sync", 2, 9)))
    (line,) = told["lines"]
    assert line.endswith(": rank 1 died; 1 worker left, too few to go on from step 45")


def test_a_printed_table_shows_what_matters_and_where_the_rest_is() -> None:
    row = {"label": "sync × 2", "seconds": 1.5, "speedup": 1.8, "accuracy": 0.97, "bytes": 7}
    table = Table([row, {**row, "label": "sequential", "speedup": None}])
    table.report = Path("runs/one/report.html")
    assert str(table).splitlines() == [
        "            seconds  speed-up  accuracy",
        "sync × 2       1.50      1.80    97.00%",
        "sequential     1.50         –    97.00%",
        "all of it: runs/one/report.html",
    ]


def test_what_a_preset_decides_is_told_by_its_name() -> None:
    cycle = {"preset": "one-cycle", "batch_size": 192, "lr": 0.06}
    runs = [
        timed(strategy, workers, 12 / workers + given.get("lr", 0), **given)
        for given in ({"preset": "none"}, cycle)
        for strategy, workers in (("sequential", 1), ("sync", 2), ("sync", 4))
    ]
    found = summary(*runs)
    assert found.layout.axes == ("preset",)
    assert sorted(labels(found)) == [
        "sequential · no preset",
        "sequential · one-cycle",
        "sync · no preset",
        "sync · one-cycle",
    ]
    speedups = {row.label: row.speedup for row in found.rows if row.workers == 4}
    assert speedups["sync · one-cycle"] == pytest.approx(12.06 / 3.06)
    runs[1]["config"]["lr"] = 0.5  # beside a preset, and so a setting of its own
    assert set(summary(*runs).layout.axes) == {"lr", "preset"}
