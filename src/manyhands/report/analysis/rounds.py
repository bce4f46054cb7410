"""Rounds of interleaved repeats, and ratios of times within them.

Where the repeats of two configurations took turns, whatever slowed the machine for a while slowed
both: the ratio of their times in one round says more than the ratio of their medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from manyhands.report.analysis.run_facts import values
from manyhands.report.analysis.spread import Spread, spread
from manyhands.report.records.runs import Run


def ordered(runs: Sequence[Run]) -> list[Run]:
    """Return the repeats in the order in which they began."""
    return sorted(runs, key=lambda run: run.started)


def in_turn(one: Sequence[Run], other: Sequence[Run], fewest: int = 2) -> bool:
    """Say whether each repeat of both configurations began before the next one of either."""
    times = [[run.started for run in ordered(runs)] for runs in (one, other)]
    if len(one) != len(other) or len(one) < fewest or not all(map(all, times)):
        return False
    return all(max(now) < min(after) for now, after in pairwise(zip(*times, strict=True)))


def ratio(what: str, one: Sequence[Run], other: Sequence[Run]) -> Spread | None:
    """Return a quantity of some repeats divided by that of others, and its range.

    Of repeats that took turns it is the median of the ratios in each round. Otherwise it is the
    ratio of the medians, and the range is that of all pairs of repeats.
    """
    mine, theirs = (values(what, ordered(runs)) for runs in (one, other))
    if not mine or not theirs or min(theirs) <= 0:
        return None
    complete = (len(mine), len(theirs)) == (len(one), len(other))
    if complete and (one is other or in_turn(one, other)):
        return spread(a / b for a, b in zip(mine, theirs, strict=True))
    return Spread(
        statistics.median(mine) / statistics.median(theirs),
        min(mine) / max(theirs),
        max(mine) / min(theirs),
        min(len(mine), len(theirs)),
    )
