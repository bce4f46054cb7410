"""What is said of accuracy and loss is said of all configurations, drawn or not."""

from __future__ import annotations

from typing import Any

from report_cases import said, several, summary, timed

from manyhands.report.figures import accuracy
from manyhands.report.figures.plots import featured


def reaching(strategy: str, at: float, seconds: float, **config: Any) -> Any:
    """Return a run that has 98 % from one evaluation on, and goes on learning for a while."""
    run = timed(strategy, 2, seconds, **config)
    for k, epoch in enumerate(run["epochs"]):
        epoch |= {"seconds": at + k * (seconds - at) / 4, "test_accuracy": 0.98}
    return run


def many(**soon: float) -> list[Any]:
    """Return nine strategies, each at two rates; the slower training reaches the target first."""
    names = [f"s{i}" for i in range(9)]
    return [
        reaching(name, at, seconds, lr=lr)
        for i, name in enumerate(names)
        for lr, at, seconds in ((0.1, 8.0 - 0.1 * i, 9.0 - 0.1 * i), (0.2, 5.0 - 0.1 * i, 20.0))
    ]


def test_the_race_is_between_all_configurations() -> None:
    found = summary(*many())
    told = said(accuracy.to_target(found))
    assert "S8 with lr 0.2 reached 98.0 % first, after 4.20 s, and s0 with lr 0.1 last" in (
        told[:1].upper() + told[1:]
    )
    assert "The figure shows the first to 98.0 % of the 7 curves that got there first" in told


def test_the_first_to_the_target_and_the_leader_are_drawn() -> None:
    found = summary(*many())
    drawn = featured(found)
    assert found.choice is not None
    assert found.choice.leader in drawn
    assert any(row.label == "s8" and row.x == 0.2 for row in drawn)
    assert len(drawn) == 8
    assert "and the leader, s8 with lr 0.1" in said(accuracy.to_target(found))


def test_the_leader_is_drawn_in_place_of_its_group_s_first() -> None:
    runs = [reaching("a", 7.0, 2.0, lr=0.1), reaching("a", 6.0, 9.0, lr=0.2)]
    for i, name in enumerate(("b", "c", "d")):
        runs += [reaching(name, 5.0 + 0.1 * i, 8.0, lr=lr) for lr in (0.1, 0.2)]
    found = summary(*runs)
    assert [(row.label, row.x) for row in featured(found) if row.label == "a"] == [("a", 0.1)]
    assert "of each curve, and in place of one the leader, a with lr 0.1." in said(
        accuracy.to_target(found)
    )


def test_a_loss_that_rises_is_named_though_it_is_not_drawn() -> None:
    runs = several(*((s, p, 10 / p, 0.98) for s in ("sync", "gossip") for p in (1, 2, 4, 8)))
    for run in runs:
        if (run["config"]["strategy"], run["config"]["workers"]) == ("gossip", 1):
            for k, epoch in enumerate(run["epochs"]):
                epoch["test_loss"] = 0.1 + 0.1 * k
    found = summary(*runs)
    assert not [r for r in featured(found) if r.label == "gossip" and r.workers == 1]
    assert "rises again with gossip with 1 worker" in said(accuracy.loss_over_time(found))


def test_the_most_frequent_class_reaches_no_target() -> None:
    runs = [timed("sequential", 1, 10, 0.7626), timed("sync", 2, 5, 0.7626)]
    for run in runs:
        run["data"]["classes"] = 2
        run["result"]["loss"] = 0.7
        for epoch in run["epochs"]:
            epoch["test_accuracy"] = 0.7626
    assert "reached" not in said(accuracy.to_target(summary(*runs)))


def test_many_that_learned_little_are_counted() -> None:
    runs = [timed("sync", p, 10 / p, 0.98) for p in (1, 2)]
    runs += [timed(f"s{i}", 2, 5, 0.11 + 0.01 * i) for i in range(5)]
    told = said(accuracy.final_accuracy(summary(*runs)))
    assert "Little was learned by 5 configurations (11.00 % to 15.00 %)." in told
    assert "s3" not in told


def test_accuracies_of_runs_that_end_at_a_target_are_not_compared() -> None:
    runs = several(("sequential", 1, 10, 0.951), ("sync", 2, 5, 0.97))
    for run in runs:
        run["result"]["target_accuracy"] = 0.95
    told = said(accuracy.final_accuracy(summary(*runs)))
    assert told == "Runs end when they reach 95.0 %, so their final accuracies are not compared."


def test_strategies_that_no_test_tells_from_sync_are_said_so() -> None:
    runs = several(("sync", 2, 5, 0.97), ("gossip", 2, 5, 0.97), ("sync", 1, 9, 0.97))
    told = said(accuracy.final_accuracy(summary(*runs)))
    assert "no strategy differs from sync in time or accuracy by more than chance explains" in told


def test_ends_of_different_seeds_are_said_to_be_so() -> None:
    runs = several(("sync", 1, 9, 0.97), ("sync", 2, 5, 0.96))
    assert "seeds" not in said(accuracy.final_accuracy(summary(*runs)))
    told = said(accuracy.final_accuracy(summary(*runs[:-1])))
    assert "; their repeats have different seeds." in told


def test_the_ends_of_any_axis_are_compared_within_a_strategy() -> None:
    runs = [r for lr, a in ((0.1, 0.9), (0.2, 0.96)) for r in several(("sync", 2, 5, a), lr=lr)]
    runs += [r for lr in (0.1, 0.2) for r in several(("gossip", 2, 5, 0.93), lr=lr)]
    told = said(accuracy.final_accuracy(summary(*runs)))
    assert "sync rises from 90.01 % to 96.01 % between lr 0.1 and 0.2 (p" in told
