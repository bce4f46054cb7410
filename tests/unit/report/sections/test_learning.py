"""What was learned, and what was not: runs that learned nothing are called so."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import records
from report_cases import said, served, several, summary, timed

from manyhands.experiments.sweep.experiment_definition import DEMO
from manyhands.report import build
from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.summary import Summary
from manyhands.report.figures import accuracy
from manyhands.report.figures.all_figures import charts
from manyhands.report.output.page import result_columns
from manyhands.report.sections import asynchronous_topic, staleness_topic, topics
from manyhands.report.sections.answer import answer
from manyhands.report.sections.machines_and_settings import blocks
from manyhands.report.wording.formatting import option

ROOT = Path(__file__).parents[4]


def split() -> Summary:
    """Return sync that learned, and a server of which one repeat of two did not."""
    runs = several(("sync", 2, 10, 0.98), repeats=2, lr=0.05)
    for i, reached in enumerate((0.1135, 0.9595)):
        run = timed("server", 2, 9 + i, reached, repeat=i, lr=0.05, masters=1)
        run["strategy"]["staleness"] = {"histogram": {"1": 10}, "mean": 1.0}
        runs.append(run)
    return summary(*runs)


def test_a_median_of_a_run_that_learned_and_one_that_did_not_is_no_accuracy() -> None:
    found = split()
    row = next(row for row in found.rows if row.label == "server")
    assert row.mixed
    assert said([facts.accuracy(row)]) == "11.35 % to 95.95 % (1 of 2 repeats learned little)"
    column = next(c for c in result_columns(found) if c.title == "accuracy, %")
    cell = column.cell(row)
    assert (cell.text, cell.aside) == ("11.35 to 95.95", "1 of 2 repeats learned little")
    told = said([*accuracy.final_accuracy(found), *asynchronous_topic.sentences(found)])
    assert "53.65" not in told
    assert "percentage points" not in told
    assert "Not every repeat learned: server with 2 workers, 11.35 % to 95.95 %" in told


def test_a_run_at_chance_level_learned_nothing() -> None:
    found = summary(timed("sequential", 1, 10, 0.98), timed("sync", 2, 5, 0.97),
                    timed("server", 4, 3, 0.1504, masters=1))  # fmt: skip
    told = said(accuracy.final_accuracy(found))
    assert "Little was learned by server with 4 workers (15.04 %)." in told
    assert "ranges from 97.00 % for sync with 2 workers to 98.00 % for sequential" in told
    assert "chance" not in told


def test_a_large_difference_is_never_called_none() -> None:
    runs = [timed("sync", 2, 10, a, repeat=i) for i, a in enumerate((0.98, 0.985))]
    runs += [timed("averaging", 2, 10, a, repeat=i) for i, a in enumerate((0.83, 0.95))]
    told = said(accuracy.final_accuracy(summary(*runs)))
    assert "(too few repeats to tell: p = " in told
    assert "rule out chance" not in told


def test_the_bound_counts_runs_that_learned() -> None:
    told = said(tuple(staleness_topic.sentences(split())))
    assert "where every repeat" not in told
    assert "Where repeats learned little, η τ is at least 0.05 (server with 2 workers)." in told


def test_a_large_fall_of_single_runs_is_named() -> None:
    runs = [served(2, 1, accuracy=0.96), served(8, 1, accuracy=0.6)]
    told = said(tuple(staleness_topic.sentences(summary(*runs))))
    assert "server falls by 36.00 percentage points, from 96.00 % with 2 to 60.00 % with 8" in told
    assert "(a single run)" in told


def test_a_rate_that_was_divided_is_said_to_be() -> None:
    runs = [served(p, 1, lr_scaling="inverse") for p in (2, 4)]
    told = said(tuple(staleness_topic.sentences(summary(*runs))))
    assert "The learning rate (divided by the workers) times the mean staleness" in told


def test_training_is_said_to_diverge_where_it_did() -> None:
    assert staleness_topic.title(split()).startswith("Why asynchronous training diverges")
    run = timed("server", 2, 9, masters=1)
    run["strategy"]["staleness"] = {"histogram": {"1": 10}, "mean": 1.0}
    fine = summary(timed("sync", 2, 10), run)
    assert "How late gradients are" in [topic.title for topic in topics.topics(fine)]


def test_one_answer_to_all_questions_is_nothing_learned() -> None:
    runs = [timed("sequential", 1, 10, 0.7626), timed("sync", 2, 5, 0.7626)]
    for run, loss in zip(runs, (0.7021, 0.7030), strict=True):
        run["data"]["classes"] = 2
        run["result"]["loss"] = loss
        for epoch in run["epochs"]:
            epoch["test_accuracy"] = 0.7626
    found = summary(*runs)
    (told,) = answer(found)
    assert "No configuration learned" in told
    assert not any(row.leads for row in found.rows)
    for run in runs:  # the same model, twice: that is no reason
        run["result"]["loss"] = 0.3
    assert "learned" not in said(answer(summary(*runs)))


def test_the_target_is_for_runs_with_an_accuracy() -> None:
    runs = several(("sequential", 1, 10, 0.98), ("sync", 2, 5, 0.98), repeats=2)
    late = [timed("gossip", 2, 5, 0.9, repeat=i) for i in (0, 1)]
    partly = [timed("averaging", 2, 5, a, repeat=i) for i, a in enumerate((0.98, 0.9))]
    for run in [*late, *partly]:
        for epoch in run["epochs"]:
            epoch["test_accuracy"] = min(epoch["test_accuracy"], run["result"]["accuracy"])
    without = timed("hogwild", 2, 5)
    without["result"]["accuracy"] = None
    for epoch in without["epochs"]:
        epoch["test_accuracy"] = None
    told = said(accuracy.to_target(summary(*runs, *late, *partly, without)))
    assert "Gossip with 2 workers did not reach 98.0 %; averaging with 2 workers reached " in told
    assert "reached 98.0 % in some repeats only." in told
    assert "hogwild" not in told


def ending(losses: tuple[float, ...], final: float, repeat: int = 0) -> Any:
    run = timed("sync", 2, 10 + repeat, repeat=repeat)
    run["epochs"] = run["epochs"][: len(losses)]
    for epoch, loss in zip(run["epochs"], losses, strict=True):
        epoch["test_loss"] = loss
    run["result"]["loss"] = final
    return run


def test_a_loss_that_falls_at_the_end_is_not_rising() -> None:
    assert "rises again" in said(accuracy.loss_over_time(summary(ending((0.9, 0.3, 0.5), 0.5))))
    assert "rises again" not in said(accuracy.loss_over_time(summary(ending((0.3, 0.9, 0.5), 0.5))))


def test_labels_read_as_words() -> None:
    assert option("slow", "1:3") == "worker 1 3× slower"
    assert option("slow", "1:1") == "no slow worker"
    assert option("asynchronous", False) == "not asynchronous"
    assert option("staleness_aware", False) == "not staleness aware"


def test_guessing_has_the_loss_of_guessing() -> None:
    found = summary(*several(("sequential", 1, 10, 0.13), ("sync", 2, 5, 0.11)))
    assert not any(row.unlearned for row in found.rows)  # nothing to compare with
    assert charts(found)
    assert math.isclose(facts.guessing(10, found.rows[0].runs)[1].value, math.log(10))


@pytest.mark.parametrize(
    "place", [DEMO, *sorted(ROOT.glob("experiments/*.toml"))], ids=lambda p: p.stem
)
def test_an_experiment_names_no_number_of_workers(place: Path) -> None:
    """`--workers` and `--quick` change it, and the page would show the wrong one."""
    text = place.read_text(encoding="utf-8")
    words = " ".join(re.findall(r'^(?:title|question) = "(.*)"', text, re.MULTILINE))
    assert words
    assert not re.search(r"\d+ (workers|cores|processes)", words)


def test_a_question_about_workers_that_never_ran_is_not_shown(tmp_path: Path) -> None:
    runs = [records.record("sync", p) for p in (1, 2)]
    for name, question in (("a", "Do 4 workers find the same?"), ("b", "Do 2 workers do?")):
        folder = records.sweep(tmp_path / name, runs, question=question)
        page = build([folder], tmp_path / f"out-{name}").read_text(encoding="utf-8")
        assert (question in page) == (name == "b")


def test_a_model_without_a_name_is_called_so() -> None:
    run = timed("sync", 2, 10)
    run["model"]["name"] = run["config"]["model"] = "<lambda>"
    shown = str(blocks(summary(run)))
    assert "<lambda>" not in shown
    assert "a function without a name" in shown
