"""Figures of experiments that are not about workers alone: input, steps to a target, shares."""

from __future__ import annotations

from typing import Any

import pytest
import records
from matplotlib.figure import Figure
from report_cases import summary, timed

from manyhands.report.figures import batch_shares, input_growth, steps_to_target
from manyhands.report.figures.all_figures import charts
from manyhands.report.figures.chart import render
from manyhands.report.output.page import SECTIONS
from manyhands.report.wording.formatting import THIN, option


def said(sentences: list[str]) -> str:
    return " ".join(sentences).replace(THIN, " ")


def sized(strategy: str, workers: int, limit: int, seconds: float, **more: Any) -> Any:
    found = timed(strategy, workers, seconds, limit=limit, **more)
    found["result"]["examples"] = 2 * limit
    return found


def ids(found: Any) -> set[str]:
    return {chart.id for chart in charts(found)}


def test_time_in_proportion_to_the_examples() -> None:
    found = summary(*(sized("sequential", 1, n, n / 1000) for n in (1000, 2000, 4000)))
    assert "growth" in ids(found)
    assert said(input_growth.comment(found)) == (
        "sequential: 4.00× the examples take 4.00× the time (in proportion), "
        "500 µs an example at the end."
    )


def test_a_part_that_does_not_grow_is_found() -> None:
    found = summary(*(sized("sync", 2, n, 3 + n / 1000) for n in (1000, 2000, 4000, 8000)))
    assert input_growth.fixed(next(iter(input_growth.series(found).values()))) == pytest.approx(3)
    told = said(input_growth.comment(found))
    assert "8.00× the examples take 2.75× the time" in told
    assert "66 % less than in proportion, about 3.00 s do not grow" in told


def test_time_that_grows_faster_than_the_examples_is_told() -> None:
    found = summary(sized("sync", 2, 1000, 1), sized("sync", 2, 2000, 3))
    assert "50 % more than in proportion" in said(input_growth.comment(found))
    assert "do not grow" not in said(input_growth.comment(found))


def test_private_runs_are_curves_of_their_own_against_private_baselines() -> None:
    runs = [sized("sequential", 1, n, n / 1000) for n in (1000, 4000)]
    runs += [sized("sync", 2, n, n / 2000) for n in (1000, 4000)]
    for p, strategy in ((1, "sequential"), (2, "sync")):
        for n in (1000, 4000):
            found = records.private(strategy, p, sigma=1.0, limit=n)
            found["data"]["train"] = n
            found["result"]["seconds"] = 2 * n / 1000 / p**0.5
            runs.append(found)
    told = input_growth.comment(summary(*runs))
    assert [line.partition(":")[0] for line in told] == [
        "sequential",
        "sequential · private",
        "sync · 2 workers",
        "sync · private · 2 workers",
    ]
    assert "from 2.00× to 2.00×" in said(told[2:3])
    assert "from 1.41× to 1.41×" in said(told[3:])


def test_the_speed_up_is_followed_where_there_is_a_baseline_of_each_size() -> None:
    runs = [sized("sequential", 1, n, n / 1000) for n in (1000, 4000)]
    runs += [sized("sync", 4, n, 0.5 + n / 4000) for n in (1000, 4000)]
    assert "the speed-up goes from 1.33× to 2.67×" in said(input_growth.comment(summary(*runs)))


def test_a_change_of_the_speed_up_within_the_repeats_is_none() -> None:
    runs = [
        sized(name, p, n, n * (1 + 0.3 * i) / 1000 / p**0.5, repeat=i)
        for i in range(3)
        for name, p in (("sequential", 1), ("sync", 4))
        for n in (1000, 4000)
    ]
    for run in runs:
        run["started"] = ""  # none took turns
    told = said(input_growth.comment(summary(*runs)))
    assert "; the repeats tell no change of the speed-up." in told
    assert "goes from" not in told


def test_workers_and_examples_can_both_vary() -> None:
    runs = [sized("sync", p, n, n / p / 1000) for p in (2, 4) for n in (1000, 4000)]
    found = summary(*runs)
    assert list(input_growth.series(found)) == ["sync · 2 workers", "sync · 4 workers"]
    notes = input_growth.draw(Figure().subplots(), found)
    assert len(notes) == 4
    assert notes[-1].at == (8000, 1.0)


def test_the_same_input_for_all_is_no_growth() -> None:
    assert "growth" not in ids(summary(*(records.record("sync", p) for p in (1, 2, 4))))
    weak = [records.record("sync", p, weak=True) for p in (1, 2, 4)]
    assert "growth" not in ids(summary(*weak))


def aimed(workers: int, accuracies: list[float], each: int = 100, **more: Any) -> Any:
    """Return a run with an evaluation every `each` steps, that was to stop at 90 %."""
    found = records.record("sync", workers, epochs=len(accuracies), **more)
    for i, (epoch, accuracy) in enumerate(zip(found["epochs"], accuracies, strict=True), 1):
        epoch |= {"steps": i * each, "test_accuracy": accuracy}
    reached = accuracies[-1] >= 0.9
    found["result"] |= {"target_accuracy": 0.9, "accuracy": accuracies[-1]}
    found["result"]["seconds_to_target"] = found["result"]["seconds"] if reached else None
    found["config"]["target_accuracy"] = 0.9
    return found


def test_steps_are_read_between_two_evaluations() -> None:
    found = summary(aimed(1, [0.6, 0.8, 0.92], batch_size=32))
    (run,) = found.rows[0].runs
    assert steps_to_target.steps(run, 0.86) == pytest.approx(250)
    assert steps_to_target.steps(run, 0.6) == 100  # at the first evaluation: not later than that
    assert steps_to_target.steps(run, 0.95) is None


def test_steps_fall_as_theory_says() -> None:
    runs = [aimed(p, [0.5, 0.9], each=400 // p, batch_size=32 * p, lr=0.01 * p) for p in (1, 2, 4)]
    found = summary(*runs)
    assert "arrival" in ids(found)
    told = said(steps_to_target.comment(found))
    assert "sync: 800 steps with 1 worker, 200 with 4, 4.00× fewer where theory says 4.00×" in told
    assert "; within 15 % of it with 2 and 4 workers." in told
    notes = steps_to_target.draw(Figure().subplots(), found)
    assert [note.at for note in notes] == [(1, 800), (2, 400), (4, 200)]


def test_where_theory_ends_is_told() -> None:
    each = {1: 400, 2: 200, 4: 150}
    runs = [aimed(p, [0.5, 0.9], each=n, batch_size=32 * p) for p, n in each.items()]
    assert "; within 15 % of it with 2 workers." in said(steps_to_target.comment(summary(*runs)))
    runs = [aimed(p, [0.5, 0.9], each=300 - p, batch_size=32 * p) for p in (1, 2, 4)]
    assert "none is within 15 % of it" in said(steps_to_target.comment(summary(*runs)))


def test_the_same_batch_for_all_cannot_need_fewer_steps() -> None:
    runs = [aimed(p, [0.5, 0.9], batch_size=128) for p in (1, 2, 4)]
    told = said(steps_to_target.comment(summary(*runs)))
    assert "the batch behind an update is the same for all, and so are the steps" in told


def test_who_does_not_arrive_is_named_and_not_drawn() -> None:
    runs = [aimed(p, [0.5, 0.9], each=400 // p, batch_size=32 * p) for p in (1, 2)]
    runs += [aimed(4, [0.5, 0.8], each=100, batch_size=128)]
    found = summary(*runs)
    assert len(steps_to_target.draw(Figure().subplots(), found)) == 2
    assert "Not in every repeat at 90.0 %: sync with 4 workers." in said(
        steps_to_target.comment(found)
    )


def test_without_a_target_there_are_no_steps_to_it() -> None:
    assert "arrival" not in ids(summary(*(records.record("sync", p) for p in (1, 2, 4))))


def shared(balance: str, workers: int, seconds: float) -> Any:
    found = timed("sync", workers, seconds, balance=balance, slow="1:3")
    if balance == "speed":
        equal = [128 // workers] * workers
        found["strategy"] = {"shares": [[0, equal], [16, [*equal[:-1], 8]]]}
    return found


def test_shares_say_what_balancing_brought() -> None:
    runs = [shared(b, p, s) for p, s in ((2, 12.0), (4, 6.0)) for b in ("none", "speed")]
    runs[1]["result"]["seconds"] = 8.0
    found = summary(*runs)
    told = said(batch_shares.comment(found))
    assert "examples per second are 1.50× those of equal parts" in told
    assert "The figure shows sync · balance speed with 2 workers." in told
    notes = batch_shares.draw(Figure().subplots(), found)
    assert {note.series for note in notes} == {"worker 0", "worker 1"}
    alone = summary(shared("speed", 2, 8.0))
    assert "of equal parts" not in said(batch_shares.comment(alone))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("balance", "speed", "balance speed"), ("balance", "none", "no balance"),
     ("slow", "1:3", "worker 1 3× slower"), ("allreduce", "ring", "ring"),
     ("cut", None, "default cut"), ("limit", None, "no limit"),
     ("staleness", None, "any staleness")],
)  # fmt: skip
def test_an_option_is_named_where_its_value_alone_says_nothing(
    name: str, value: str | None, shown: str
) -> None:
    assert option(name, value) == shown


@pytest.mark.parametrize("identity", ["growth", "arrival", "shares"])
def test_a_page_has_a_place_for_each_figure_and_it_can_be_drawn(identity: str) -> None:
    runs = {
        "growth": [sized("sync", 2, n, n / 1000) for n in (1000, 2000)],
        "arrival": [aimed(p, [0.5, 0.9], each=400 // p, batch_size=32 * p) for p in (1, 2)],
        "shares": [shared("speed", 2, 8.0)],
    }[identity]
    (chart,) = [c for c in charts(summary(*runs)) if c.id == identity]
    assert any(identity in ids for ids in SECTIONS.values())
    assert "<title>" in render(chart, None).svg
