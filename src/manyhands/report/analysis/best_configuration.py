"""Which configuration leads, by which rule, and whether the measurement supports it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from manyhands.report.analysis.rounds import ratio
from manyhands.report.analysis.significance import compare
from manyhands.report.analysis.summary import Choice, Row
from manyhands.report.records.fields import number
from manyhands.report.records.runs import Run

TOLERANCE = 0.01  # how far below the best a model is still as good
BARELY = 0.05  # of the way from guessing to faultless: no more than chance
UNIFORM = 0.02  # of the loss of guessing: the model says the same of every class
HALF = 0.5  # of the best run's gain: with less a model has lost much of what others learned
HARDLY = 0.2  # of the way to faultless, with the loss of guessing: no more than chance either


def choose(everything: Sequence[Row], scaling: str, target: float | None) -> Choice | None:
    """Return the leading configuration and the rule it was chosen by."""
    rows = [row for row in everything if row.scaling == scaling and not row.overran]
    if len(rows) < 2:
        return None
    arrived = [row for row in rows if row.to_target is not None]
    if target is not None and arrived:
        rule = "the shortest time to the target accuracy"
        if max(len(row.runs) for row in rows) > 1:
            rule = "the shortest median time to the target among those that always reached it"
        leader = min(arrived, key=lambda row: row.to_target or math.inf)
        return _choice(leader, rule, "seconds to target", "", arrived, rows)
    uneven = any(row.uneven for row in rows)  # then accuracies do not compare
    fair, among = (rows, "") if uneven else _fair(rows)
    if scaling == "weak" or uneven:
        leader = max(fair, key=lambda r: r.rate or 0)
        rule = f"the most examples per second{among}"
        return _choice(leader, rule, "examples per second", among, fair, rows)
    leader = min(fair, key=lambda r: r.seconds.median if r.seconds else math.inf)
    return _choice(leader, f"the shortest training time{among}", "seconds", among, fair, rows)


def _choice(
    leader: Row,
    rule: str,
    measure: str,
    among: str,
    candidates: Sequence[Row],
    pool: Sequence[Row],
) -> Choice:
    others = [row for row in candidates if row is not leader]
    rivals = tuple(row for row in others if not compare(leader, row, measure).apart)
    return Choice(
        leader=leader,
        rule=rule,
        measure=measure,
        among=among,
        candidates=tuple(candidates),
        rivals=rivals,
        overlapping=tuple(row for row in rivals if _overlap(leader, row, measure)),
        learned=any(learned(row) for row in candidates) and not one_answer(pool),
    )


def _overlap(leader: Row, row: Row, measure: str) -> bool:
    """Say whether some repeat of another configuration was as good as one of the leader."""
    if measure == "seconds to target":
        return max(leader.arrivals) >= min(row.arrivals)
    found = ratio(measure, leader.runs, row.runs)
    if found is None:
        return True
    return found.low <= 1 if measure == "examples per second" else found.high >= 1


def _fair(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Return the configurations that are nearly as good as the best, and what that means."""
    accuracies = [row.accuracy.median for row in rows if row.accuracy]
    if accuracies:
        floor = max(accuracies) - TOLERANCE
        fair = [row for row in rows if row.accuracy and row.accuracy.median >= floor]
        return fair, " within one percentage point of the highest accuracy"
    held = [(row, row.score.median) for row in rows if row.score]
    metrics = {(run.metric, run.higher) for row in rows for run in row.runs}
    if not held or len(metrics) > 1:
        return list(rows), ""
    metric, higher = metrics.pop()
    top = (max if higher else min)(value for _, value in held)
    fair = [row for row, value in held if abs(value - top) <= TOLERANCE * abs(top)]
    return fair, f" within one per cent of the best {metric}"


def with_unlearned(rows: Sequence[Row]) -> list[Row]:
    """Mark the repeats whose gain over guessing is a fifth or less of the best run's gain."""
    gains = {run.where: _gain(run) for row in rows for run in row.runs}
    best = max((gain for gain in gains.values() if gain is not None), default=0.0)
    if best <= HARDLY:
        return list(rows)
    return [
        replace(
            row,
            unlearned=tuple(
                run
                for run in row.runs
                if (gain := gains[run.where]) is not None and gain <= HARDLY * best
            ),
        )
        for row in rows
    ]


def kept(row: Row, rows: Sequence[Row]) -> bool:
    """Say whether every repeat has more than half of the best run's gain over guessing."""
    best = max((gain for each in rows for run in each.runs if (gain := _gain(run))), default=0.0)
    return all((gain := _gain(run)) is None or gain > HALF * best for run in row.runs)


def _gain(run: Run) -> float | None:
    """Return how far a run got on the way from guessing to faultless."""
    count = number(run.data, "classes")
    if run.accuracy is None or not count or count < 2:
        return None
    return (run.accuracy - 1 / count) / (1 - 1 / count)


def one_answer(rows: Sequence[Row]) -> bool:
    """Say whether all runs give the same accuracy at every evaluation, with the loss of guessing.

    Models that learned agree to the last digit only where they are the same one, and then their
    loss is better than that of guessing: such runs always give one answer, the most frequent class.
    """
    runs = [run for row in rows for run in row.runs]
    levels = {value for run in runs for value in (run.accuracy, *(e.accuracy for e in run.epochs))}
    counts = {classes(row) for row in rows}
    if len(runs) < 2 or len(levels) != 1 or None in levels or len(counts) != 1 or None in counts:
        return False
    guess = math.log(counts.pop() or 1)
    return all(run.loss is not None and run.loss >= (1 - UNIFORM) * guess for run in runs)


def classes(row: Row) -> int | None:
    """Return how many classes the record states; None where it states none."""
    count = number(row.runs[0].data, "classes")
    return int(count) if count and count > 1 else None


def learned(row: Row) -> bool:
    """Say whether a configuration is better than guessing, as far as its record can tell."""
    count = classes(row)
    if row.accuracy is None or count is None:
        return True
    chance, guess = 1 / count, math.log(count)
    gained = (row.accuracy.median - chance) / (1 - chance)
    uniform = row.loss is not None and abs(row.loss.median - guess) <= UNIFORM * guess
    return gained > (HARDLY if uniform else BARELY)
