"""Sentences that were true and misled, or were read twice: each test builds the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import records
from matplotlib.figure import Figure
from report_cases import said, served, several, summary, timed
from test_conclusions import DIVERGES
from test_conclusions import said as topic
from test_conclusions import summary as read_summary

from manyhands.errors import ConfigError
from manyhands.report import build
from manyhands.report.analysis import option_values
from manyhands.report.analysis.summarise import summarise
from manyhands.report.analysis.summary import Summary
from manyhands.report.figures import (
    accuracy,
    bottlenecks,
    option_cost,
    plots,
    replicas,
    speedup,
    traffic,
)
from manyhands.report.figures.all_figures import charts
from manyhands.report.records.load import read
from manyhands.report.sections.answer import answer
from manyhands.report.sections.doubts import disturbed_clause
from manyhands.report.sections.machines_and_settings import blocks
from manyhands.report.sections.table_notes import notes


def test_fastest_says_of_which_where_others_took_less() -> None:
    cases = [("sequential", 1, 12.0, 0.98), ("sync", 4, 6.0, 0.98), ("sync", 2, 7.0, 0.98)]
    assert "is fastest: " in said(answer(summary(*several(*cases))))
    told = said(answer(summary(*several(*cases, ("averaging", 4, 3.0, 0.9)))))
    assert told.startswith(
        "Sync with 4 workers is fastest of those within one percentage point of the highest "
        "accuracy: 6.06"
    )
    assert "Of 2 configurations with several workers within one percentage point" in told
    assert ", all 2 were faster than the sequential run in every repeat (" in told


def two_tasks(folder: Path) -> Summary:
    """Return two sweeps of different models, of which one reaches 99 % and the other 80 %."""
    folders = []
    for name, level, parameters in (("convolutions", 0.99, 9840), ("layers", 0.8, 118282)):
        runs = [timed("sync", p, 10 / p, level, repeat=i) for i in range(3) for p in (1, 2, 4)]
        for run in runs:
            run["model"] |= {"name": name, "parameters": parameters}
            for worker in run["workers"]:
                worker["operations"] = {
                    "allreduce": {"calls": 10, "bytes": 40.0 * parameters, "messages": 9,
                                  "payload": 40.0 * parameters, "seconds": 1.0}
                }  # fmt: skip
        folders.append(records.sweep(folder / name, runs))
    return summarise(read(folders))


def test_different_tasks_have_no_common_target(tmp_path: Path) -> None:
    found = two_tasks(tmp_path)
    assert found.tasks == 2
    assert found.target is None
    assert all(row.to_target is None and not row.reached for row in found.rows)
    assert "did not reach" not in said(accuracy.to_target(found))
    assert "half a percent" not in said(notes(found))


def test_lines_of_theory_have_names_of_their_own(tmp_path: Path) -> None:
    ax = Figure().add_axes((0, 0, 1, 1))
    traffic.draw(ax, two_tasks(tmp_path))
    labels = [str(line.get_label()) for line in ax.get_lines()]
    assert len(set(labels)) == len(labels)
    assert sum("in theory" in label for label in labels) == 2


def test_many_curves_stay_near_the_place_that_was_measured() -> None:
    kinds = [f"kind{i}" for i in range(12)]
    found = summary(*(timed(k, p, 10, 0.9) for k in kinds for p in (1, 16)))
    ax = Figure().add_axes((0, 0, 1, 1))
    drawn = plots.along(ax, found, lambda row: row.accuracy, str, dodge=0.06)
    assert all(min(abs(note.at[0] / p - 1) for p in (1, 16)) < 0.16 for note in drawn)


def test_a_law_that_does_not_fit_has_no_serial_part(tmp_path: Path) -> None:
    times = {1: 10.0, 2: 5.3, 4: 9.0, 8: 10.0}
    runs = [timed("sequential", 1, 10, cores=16)]
    runs += [timed("sync", p, t, cores=16) for p, t in times.items() if p > 1]
    told = topic(read_summary(tmp_path, runs), "Amdahl's or Gustafson's law")
    assert "does not fit, since the speed-up falls with more workers: sync." in told
    assert "f =" not in told


def test_a_disturbed_run_that_is_the_only_one_is_not_counted() -> None:
    def clause(*robbed: bool) -> str:
        runs = [timed("sync", 2, 5, repeat=i) for i in range(len(robbed))]
        for run, slow in zip(runs, robbed, strict=True):
            for process in run["workers"]:
                whole = process["compute"] + process["update"]
                process |= {"user": whole / (2 if slow else 1), "system": 0.0}
        return said([disturbed_clause(summary(*runs).rows[0])])

    assert clause(True) == " Its run was disturbed."
    assert clause(True, True) == " Both its runs were disturbed."
    assert clause(True, False, False) == " 1 of its 3 runs was disturbed."
    assert clause(True, True, False) == " 2 of its 3 runs were disturbed."


def test_replicas_that_are_equal_are_not_furthest_apart() -> None:
    run = timed("gossip", 2, 5)
    for last, told in ((0.0, ""), (0.25, "0.25")):
        run["strategy"]["consensus_distance"] = [[10, 0.0], [20, last]]
        assert told in said(replicas.comment_distance(summary(run)))
        assert bool(told) == bool(replicas.comment_distance(summary(run)))


def test_a_range_without_those_that_learned_nothing_says_so() -> None:
    cases = (("sync", 2, 6, 0.98), ("averaging", 2, 6, 0.95), ("server", 2, 6, 0.1))
    told = said(accuracy.final_accuracy(summary(*several(*cases))))
    assert "Apart from these, the accuracy ranges from 95.01 % for averaging with 2 workers" in told
    told = said(accuracy.final_accuracy(summary(*several(*cases[:2]))))
    assert told.startswith("The accuracy ranges from 95.01 %")


def test_a_range_without_those_that_trained_on_says_so() -> None:
    longer = timed("server", 2, 5)
    longer["result"]["steps"] = longer["epochs"][-1]["steps"] = 7
    for process in longer["workers"]:
        process["steps"] = 7
    longer["result"]["steps"] = 5
    less = timed("gossip", 2, 6)
    less["result"]["accuracy"] = 0.97
    told = said(accuracy.final_accuracy(summary(timed("sync", 2, 6), less, longer)))
    assert "Among runs that did not train on while they were evaluated, the accuracy ra" in told


def test_single_configurations_are_not_said_to_be_on_curves() -> None:
    names = [f"s{i}" for i in range(10)]
    found = summary(*(timed(name, 2, 10) for name in names))
    assert accuracy.chosen(found) == (
        "The figure shows the 8 configurations that reached 98.0\u202f% first."
    )


def test_masters_of_processes_that_take_turns_predict_nothing(tmp_path: Path) -> None:
    title = "Why the parameters are split over several masters"
    for cores, expected in ((16, True), (4, False)):
        runs = [served(6, 2, repeat, cores=cores) for repeat in range(2)]
        told = topic(read_summary(tmp_path / str(cores), runs), title)
        assert "the busiest works" in told
        assert ("busy all the time" in told) == expected


def test_how_far_from_guessing_is_not_said_of_runs_without_an_accuracy(tmp_path: Path) -> None:
    told = topic(read_summary(tmp_path / "a", [served(8, 1, lr=0.01)]), "How late gradients are")
    assert "as far from guessing" in told
    run = served(8, 1, lr=0.01)
    run["result"]["accuracy"] = None
    told = topic(read_summary(tmp_path / "b", [run]), "How late gradients are")
    assert "from guessing" not in told
    assert "updates since" in told


def test_a_batch_that_grows_with_the_workers_is_why_no_sequential_run_fits() -> None:
    runs = [timed("sequential", 1, 12), timed("sync", 1, 12), timed("sync", 2, 7)]
    runs[2]["batch"]["update"] *= 2
    told = speedup.baseline(summary(*runs))
    assert "the batch grows with the workers, so no one sequential run fits all" in told


def test_what_is_no_command_is_not_called_one(tmp_path: Path) -> None:
    command = "for s in 0 1: on cores of its own, manyhands compare e.toml --seed $s"
    folder = records.sweep(tmp_path / "s", [timed("sync", 2, 7)], command=command)
    page = build([folder], tmp_path / "out").read_text(encoding="utf-8")
    assert '<p class="note">How it was made:</p>' in page
    assert "The command" not in page


def test_what_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        build([tmp_path], tmp_path / "out")
    assert str(caught.value).count("sweep.json") == 1
    assert str(caught.value).count(str(tmp_path)) == 1


def product(folder: Path, *runs: dict[str, Any]) -> str:
    found = read_summary(folder, list(runs))
    return topic(found, DIVERGES) + topic(found, "How late gradients are")


def test_a_model_that_lost_half_of_it_did_not_learn_at_that_rate(tmp_path: Path) -> None:
    good = served(2, 1, accuracy=0.97, lr=0.01)
    told = product(tmp_path / "good", good, served(8, 1, accuracy=0.96, lr=0.1))
    assert "(server · 8 workers with lr 0.1) where every repeat" in told
    assert "The learning rate times the mean staleness, η τ, is at most" in told
    told = product(tmp_path / "half", good, served(8, 1, accuracy=0.46, lr=0.1))
    assert "(server · 2 workers with lr 0.01) where every repeat" in told
    broken = served(8, 1, lr=0.1) | {"status": "failed", "error": "the loss is nan at step 3"}
    told = product(tmp_path / "nan", good, served(8, 1, accuracy=0.96, lr=0.1, seed=1), broken)
    assert "(server · 2 workers with lr 0.01) where every repeat" in told


@pytest.mark.parametrize(("strategy", "expected"), [("sync", True), ("hogwild", False)])
def test_a_strategy_that_does_not_wait_is_not_told_to_take_such_a_one(
    strategy: str, expected: bool
) -> None:
    run = timed(strategy, 2, 10)
    for worker, compute, wait in zip(run["workers"], (9.0, 3.0), (0.0, 6.0), strict=True):
        worker |= {"compute": compute, "wait": wait, "communicate": 0.5, "update": 0.1}
    assert ("the other waits for it" in said(bottlenecks.waiting(summary(run)))) == expected
    told = said(bottlenecks.help_wanted(summary(run)))
    assert ("use a strategy that does not wait" in told) == expected


def test_runs_that_were_profiled_do_have_a_sequential_run() -> None:
    runs = [timed("sequential", 1, 10), timed("sync", 2, 5)]
    missing = "No speed-up is given"
    assert missing in said(notes(summary(runs[1])))
    for run in runs:
        run["strategy"]["profile"] = {"phases": [{"name": "compute", "calls": 1, "own": 1.0}]}
        run["config"]["profile"] = True
    found = summary(*runs)
    assert not found.has_speedup
    assert missing not in said(notes(found))


def test_settings_are_in_order() -> None:
    runs = [timed("sync", p, 10 / p) for p in (1, 12, 2)]
    (settings,) = [block for block in blocks(summary(*runs)) if block["title"] == "Settings"]
    assert dict(settings["pairs"])["workers"] == "1, 2, 12"


def test_examples_of_different_tasks_are_not_compared(tmp_path: Path) -> None:
    found = two_tasks(tmp_path)
    assert not accuracy.amounts(found)
    assert all("saw most" not in said(chart.comment) for chart in charts(found))


def test_less_data_is_not_faster_training() -> None:
    runs = [timed("sync", p, t / p, a, limit=n, repeat=i) for i in range(3) for p in (1, 2)
            for n, t, a in ((1000, 2 + 0.01 * i, 0.7), (8000, 10 + 0.01 * i, 0.98))]  # fmt: skip
    for run in runs:
        run["result"]["examples"] = run["config"]["limit"]
    found = summary(*runs)
    assert found.choice is None
    assert found.target is None
    told = said(answer(found))
    assert "fastest" not in told
    assert "8.00× the examples take 4.98× (4.95× to 5.01×) the time" in told


def test_times_of_disturbed_runs_are_not_compared_for_an_option() -> None:
    runs = [timed("sync", 2, 5 + i % 3 * 0.01 + (k == "c"), repeat=i, topology=k)
            for i in range(3) for k in "abcdef"]  # fmt: skip
    assert "c takes 6.01 s, 1.20 times as long" in _costs(runs)
    for run in runs:
        if run["config"]["topology"] == "c":
            for process in run["workers"]:
                whole = process["compute"] + process["update"]
                process |= {"user": whole / 2, "system": 0.0}
    assert "c takes" not in _costs(runs)


def _costs(runs: list[dict[str, Any]]) -> str:
    found = option_values.compare(summary(*runs))
    assert found is not None
    return said(option_cost.comment(found))


def test_less_noise_is_no_faster_training() -> None:
    one = [records.private("sync", p, sigma=2.0, repeat=r) for p in (2, 4) for r in range(2)]
    assert summary(*one).choice is not None
    less = [records.private("sync", 2, sigma=0.5, repeat=r) for r in range(2)]
    assert summary(*one, *less).choice is None
    none = [records.record("sync", 2, repeat=r) for r in range(2)]
    found = summary(*one, *none)
    assert found.choice is None
    assert "fastest" not in said(answer(found))


def test_the_costs_of_privacy_are_the_greatest_and_the_least() -> None:
    runs = [records.private(s, 4, repeat=r) for s in ("sync", "gossip") for r in range(2)]
    runs += [records.record(s, 4, repeat=r) for s in ("sync", "gossip") for r in range(2)]
    for run in runs:
        run["epochs"][-1]["test_accuracy"] = level = 0.92 if "privacy" in run else 0.97
        level -= 0.02 * ("privacy" in run and run["config"]["strategy"] == "gossip")
        run["epochs"][-1]["test_accuracy"] = run["result"]["accuracy"] = level
    told = said(answer(summary(*runs))[:1])
    assert told.startswith(
        "Privacy costs most accuracy for gossip with 4 workers: 7.00 percentage points, from 97.00"
    )
    assert " It costs least for sync with 4 workers: 5.00 percentage points, from 97.00 % " in told
    assert told.endswith("the tests compare with and without privacy, not strategies.")


def test_a_reference_that_was_disturbed_is_called_so_once() -> None:
    runs = several(("sequential", 1, 12, 0.98), ("sync", 4, 4, 0.98))
    for run in runs:
        if run["config"]["strategy"] == "sequential":
            for process in run["workers"]:
                whole = process["compute"] + process["update"]
                process |= {"user": whole / 2, "system": 0.0}
    told = said(answer(summary(*runs)))
    assert "(2.94 to 3.06) as fast as the sequential run (disturbed), at 98.01 % accuracy." in told


def test_the_best_of_what_was_faster_is_named() -> None:
    cases = (("sequential", 1, 12, 0.98), ("sync", 4, 6, 0.98), ("averaging", 4, 3, 0.6))
    told = said(answer(summary(*several(*cases, ("hogwild", 4, 4, 0.969)))))
    assert (
        "The most accurate of the faster ones, hogwild with 4 workers, took only 4.04 s, but "
        in told
    )
    assert "averaging" not in told
