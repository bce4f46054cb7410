"""Sentences that once were false: each test builds the record and reads the sentence."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import records
from report_cases import said, several, summary, timed

from manyhands.report import build, results
from manyhands.report.analysis.summarise import summarise
from manyhands.report.figures import (
    accuracy,
    bottlenecks,
    privacy_budget,
    speedup,
    steps_to_target,
    training_time,
)
from manyhands.report.figures.all_figures import charts
from manyhands.report.output.page import result_columns
from manyhands.report.records.load import read
from manyhands.report.sections import scaling_law_topic
from manyhands.report.sections.answer import answer
from manyhands.report.sections.table_notes import notes


def comment(found: Any, identity: str) -> str:
    return said(next(chart.comment for chart in charts(found) if chart.id == identity))


def test_masters_never_wait_more_than_their_time() -> None:
    run = timed("server", 2, 10, masters=1)
    run["workers"][-1] |= {"wait": 16.2, "update": 1.0, "communicate": 0.8}  # evaluations as well
    told = said(bottlenecks.waiting(summary(run)))
    assert "The masters wait for 90 % of their time." in told
    bars = next(chart for chart in charts(summary(run)) if chart.id == "phases")
    assert "162" not in str(_notes(bars))


def _notes(chart: Any) -> list[str]:
    from matplotlib.figure import Figure

    return [note.y for note in chart.draw(Figure().add_axes((0, 0, 1, 1)))]


@pytest.mark.parametrize("role", ["stage", "slice"])
def test_stages_and_slices_are_no_masters(role: str) -> None:
    run = timed("pipeline", 2, 10)
    run["workers"][1]["role"] = role
    assert "master" not in said(bottlenecks.waiting(summary(run)))
    assert "masters" not in said(speedup.comment_efficiency(summary(timed("sync", 1, 20), run)))


def test_what_is_not_drawn_is_not_said_to_be_drawn() -> None:
    names = [f"s{i}" for i in range(10)]
    found = summary(*(timed(name, p, 10 - p) for name in names for p in (1, 2)))
    assert "of the 8 curves that got there first" in accuracy.chosen(found)
    few = summary(*(timed(name, p, 10 - p) for name in names[:4] for p in (1, 2)))
    assert accuracy.chosen(few) == ("The figure shows the first to 98.0\u202f% of each curve.")
    one = summary(*(timed("sync", p, 10 / p) for p in range(1, 11)))
    assert accuracy.chosen(one).startswith("The figure shows 8 configurations")


def test_tasks_that_differ_are_not_compared() -> None:
    runs = several(("sequential", 1, 10, 0.98), ("sync", 2, 5, 0.97))
    for run in runs:
        if run["config"]["strategy"] == "sync":
            run["data"]["name"] = "other"
    found = summary(*runs)
    assert found.best is None
    told = said(answer(found))
    assert "other: sync with 2 workers trained in 5.0" in told.lower()
    assert "fast" not in told
    words = said(
        [
            *accuracy.final_accuracy(found),
            *accuracy.loss_over_time(found),
            *training_time.comment(found),
        ]
    )
    assert words == "Accuracies of different tasks are not compared."


def test_sweeps_of_different_models_are_answered_one_by_one(tmp_path: Path) -> None:
    def sweep(name: str, model: str) -> Path:
        runs = [timed(s, p, 10.0 / p + 0.01 * i, repeat=i)
                for i in range(3) for s, p in (("sequential", 1), ("sync", 2))]  # fmt: skip
        for run in runs:
            run["model"] |= {"name": model}
        return records.sweep(tmp_path / name, runs)

    folders = [sweep("convolutions", "cnn"), sweep("layers", "mlp"), sweep("again", "cnn")]
    found = summarise(read(folders[:2]))
    assert found.choice is None
    told = [str(sentence) for sentence in answer(found)]
    led = [line.partition(" with 2 workers")[0] for line in told if " times (" in line]
    assert led == ["convolutions: Sync", "layers: Sync"]
    assert summarise(read([folders[0], folders[2]])).choice is not None


def test_the_best_is_described_by_what_it_was_chosen_by() -> None:
    runs = []
    for i in range(3):
        for strategy, workers, whole, to in (("sequential", 1, 10, 9.0), ("server", 8, 22, 4.0)):
            run = timed(strategy, workers, whole + 0.01 * i, repeat=i)
            run["result"] |= {"target_accuracy": 0.96, "seconds_to_target": to + 0.01 * i}
            runs.append(run)
    headline = said(answer(summary(*runs))[:1])
    assert headline == (
        "Server with 8 workers is fastest to 96.0 % accuracy: 4.01 s, where the sequential run "
        "takes 9.01 s."
    )


def test_two_repeats_claim_no_difference_that_a_test_does_not() -> None:
    runs = [timed("sync", 1, 10, a, repeat=i) for i, a in enumerate((0.9809, 0.9845))]
    runs += [timed("sync", 4, 4, a, repeat=i) for i, a in enumerate((0.9812, 0.9811))]
    told = said(accuracy.final_accuracy(summary(*runs)))
    assert "falls" not in told
    assert "(may be chance: p = " in told
    assert "more than the repeats" not in told
    assert "claimed if Welch's t-test over the repeats gives p ≤ 5 %" in said(notes(summary(*runs)))


def test_a_difference_is_claimed_after_correction_for_all_that_could_be_picked() -> None:
    cases = [("sync", p, 10, 0.98) for p in (1, 2)]
    pair = several(*cases)
    for run in pair:
        if run["config"]["workers"] == 2:
            run["result"]["accuracy"] -= 0.0003
    assert "told apart" not in said(accuracy.final_accuracy(summary(*pair)))
    many = pair + several(*((s, p, 10, 0.98) for s in ("gossip", "hogwild") for p in (1, 2, 4)))
    told = said(accuracy.final_accuracy(summary(*many)))
    assert "may be chance: p = 0.6 after correction" in told


def test_speedups_of_a_curve_are_against_one_reference() -> None:
    base = timed("sequential", 1, 20, batch_size=64)
    one, two = timed("sync", 1, 20, batch_size=64), timed("sync", 2, 11.3, batch_size=128)
    for run in (base, one):
        run["batch"]["update"] = 64
    found = summary(base, one, two)
    group = next(group for group in found.groups if group.strategy == "sync")
    assert not found.fits  # updates of other sizes are other work
    runs = {tuple(r.where for r in row.reference) for row in found.of(group)}
    assert len(runs) == 1
    slow = summary(timed("sequential", 1, 10), one | {"result": one["result"] | {"seconds": 13}},
                   two | {"result": two["result"] | {"seconds": 9}})  # fmt: skip
    group = next(group for group in slow.groups if group.strategy == "sync")
    assert {row.by_own for row in slow.of(group)} == {True}
    assert "is against the strategy's own run with one worker for " in speedup.baseline(slow)
    shown = {column.title: column.cell for column in result_columns(slow)}
    rows = slow.of(group)
    assert [shown["speed-up"](row).text for row in rows] == [
        f"{row.own_speedup:.2f}×" for row in rows
    ]
    assert shown["speed-up"](rows[-1]).text == "1.44×"
    assert "own speed-up" not in shown


def private(epsilon: float, sigma: float, **more: Any) -> Any:
    run = records.private("sequential", 1, sigma=sigma, **more)
    run["privacy"] |= {"epsilon_pld": epsilon}
    return run


def test_what_the_steps_spend_is_what_the_run_states() -> None:
    pytest.importorskip("dp_accounting")
    told = comment(summary(private(0.9997, 1.2)), "privacy-steps")
    assert "400 steps cost ε = 1.00; the first " in told
    line = privacy_budget._lines(summary(private(0.9997, 1.2)))[0]
    spent = privacy_budget._spent(line)
    assert spent[-1] == (400, 0.9997)
    assert max(cost for _, cost in spent) == 0.9997


def test_a_private_curve_has_points_of_one_amount_of_data() -> None:
    runs = [private(e, s, limit=n) for n in (7500, 15000) for e, s in ((1.0, 2.0), (3.0, 0.9))]
    told = comment(summary(*runs), "privacy-accuracy").split(". ")
    assert sum("ε = 1.00" in sentence for sentence in told) == 2
    alone = [private(e, s, limit=n) for n, e, s in ((7500, 1.0, 2.0), (15000, 3.0, 0.9))]
    for run in alone:
        del run["config"]["noise_multiplier"]
    assert "privacy-accuracy" not in {chart.id for chart in charts(summary(*alone))}


def test_other_kernels_are_named_once() -> None:
    secret, plain = private(3.0, 0.9), timed("sequential", 1, 10)
    more = private(1.0, 1.8)
    told = comment(summary(secret, more, plain), "privacy-accuracy")
    assert "the run without privacy." in told
    assert "kernels" not in said(notes(summary(secret, plain)))
    plain["kernels"]["choice"] = "gemm"
    assert "kernels" not in comment(summary(secret, more, plain), "privacy-accuracy")
    assert "The kernels differ, which also changes the times" in said(notes(summary(secret, plain)))


def test_what_is_said_of_a_curve_is_what_is_drawn() -> None:
    runs = []
    for i, (took, loss) in enumerate(((10, 0.1657), (11, 0.1353), (12, 0.1450))):
        run = timed("sync", 2, took, repeat=i)
        run["epochs"][-1]["test_loss"] = loss
        runs.append(run)
    found = summary(*runs, timed("gossip", 2, 9))
    chart = next(chart for chart in charts(found) if chart.id == "loss-time")
    values = _notes(chart)
    row = next(row for row in found.rows if row.label == "sync")
    from manyhands.report.figures.plots import path

    end = path(row, lambda e: e.seconds, lambda e: e.loss)[-1][1]
    assert end == 0.1450
    assert "0.1450" in values
    assert "0.1657" not in values


def test_a_peak_is_not_beside_more_bring_nothing() -> None:
    runs = [timed("sync", p, t, cores=2) for p, t in ((1, 12), (2, 13), (4, 4))]
    told = said(speedup.comment(summary(*runs)))
    assert "peaks" not in told
    told = said(scaling_law_topic.sentences(summary(*runs)))
    assert "No speed-up was measured up to 2 workers with a core for each: sync." in told


def test_nobody_is_best_where_nobody_learned() -> None:
    runs = several(("sequential", 1, 10, 0.13), ("sync", 2, 5, 0.11))
    for run in runs:
        run["result"]["loss"] = math.log(10)
    found = summary(*runs)
    assert found.best is None
    (told,) = answer(found)
    assert said([told]) == (
        "No configuration learned: the highest accuracy is 13.01 %, of sequential, where guessing "
        "among 10 classes gives 10.0 %; its test loss is 2.3026, that of guessing 2.3026. No best "
        "is named."
    )
    learned = summary(*several(("sequential", 1, 10, 0.55), ("sync", 2, 5, 0.55)))
    assert learned.best is not None


def test_one_worker_is_not_crowned_for_being_faster_than_itself(tmp_path: Path) -> None:
    runs = several(("sequential", 1, 12, 0.98), ("hogwild", 1, 8, 0.98))
    found = summary(*runs)
    assert found.best is None
    assert found.choice is not None
    assert found.choice.leader.label == "hogwild"
    told = answer(found)
    assert told[0].startswith("Hogwild with 1 worker was fastest: 8.08")
    assert told[1].startswith(
        "Hogwild with 1 worker was 1.5 times (1.47 to 1.53) as fast as its ref"
    )
    folder = records.sweep(tmp_path / "s", runs)
    page = build([folder], tmp_path / "out").read_text(encoding="utf-8")
    table = results([folder])
    assert table.answer == told
    assert all(sentence in page for sentence in table.answer)
    assert "★ best" not in page
    assert not any(row["best"] for row in table)


def test_the_title_of_the_steps_follows_the_target() -> None:
    runs = [timed("averaging", p, 10 / p) for p in (1, 2)]
    for run in runs:
        run["result"]["target_accuracy"] = 0.9625
    assert (
        steps_to_target.title(summary(*runs)).replace("\u202f", " ") == "Steps to 96.25 % accuracy"
    )


def test_steps_to_a_target_have_their_range() -> None:
    runs = [timed("averaging", p, 10 / p, repeat=i) for i in range(2) for p in (1, 2)]
    for run in runs:
        run["result"]["target_accuracy"] = 0.9625
        for epoch in run["epochs"]:
            epoch["steps"] *= 1 + run["config"]["seed"]
    told = said(steps_to_target.comment(summary(*runs)))
    assert re.search(r"\d+ \([\d ]+ to [\d ]+\) steps with 1 worker", told)


def test_the_sentences_and_their_facts_are_beside_the_page(tmp_path: Path) -> None:
    build([records.sweep(tmp_path / "s", records.psgd(2))], tmp_path / "out")
    told = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    assert set(told) == {
        "schema",
        "configurations",
        "scope",
        "answer",
        "notes",
        "topics",
        "sections",
    }
    assert told["schema"] == 1
    assert {tuple(sorted(one)) for one in told["configurations"]} == {
        ("label", "name", "runs", "workers")
    }
    found = [*told["scope"], *told["answer"], *told["notes"]]
    for section in told["sections"]:
        assert set(section) == {"title", "sentences", "figures"}
        found += section["sentences"]
        for figure in section["figures"]:
            assert set(figure) == {"id", "title", "sentences"}
            assert f'id="{figure["id"]}"' in page
            found += figure["sentences"]
    assert len(found) > 20
    for sentence in found:
        assert set(sentence) == {"text", "names", "facts"}
        assert sentence["text"].replace("<", "&lt;").replace(">", "&gt;") in page
        for fact in sentence["facts"]:
            assert set(fact) == {
                "what", "value", "how", "runs", "against", "among", "parameters", "text",
            }  # fmt: skip


def test_a_winner_whose_runs_were_disturbed_is_named_with_that() -> None:
    runs = [timed("sync", p, 10 / p + 0.01 * i, repeat=i) for p in (1, 2) for i in range(3)]
    for run in runs:
        for process in run["workers"]:
            process |= {"user": process["compute"] + process["update"], "system": 0.0}
    assert "is fastest: 5.01 s" in said(answer(summary(*runs)))
    for process in runs[-1]["workers"]:
        process["user"] /= 2
    told = said(answer(summary(*runs))[:1])
    assert "was fastest: 5.0" in told
    assert told.endswith(" 1 of its 3 runs was disturbed.")
    assert "Repeat this on a quiet machine: some of the compared runs were disturbed." in answer(
        summary(*runs)
    )


def test_a_note_on_kernels_counts_what_is_too_much_to_name() -> None:
    runs = [timed(s, 2, 5) for s in ("sync", "gossip", "averaging", "hogwild")]
    for run, kernels in zip(runs, ("gemm", "native", "native", "native"), strict=True):
        run["kernels"] = {"choice": kernels}
    told = said(notes(summary(*runs)))
    assert "changes the times: sync with gemm; 3 configurations with native." in told
