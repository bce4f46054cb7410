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


def rounds(one: Sequence[Run], other: Sequence[Run], fewest: int = 2) -> list[tuple[Run, Run]]:
    """Return the repeats of two configurations that took turns, as pairs of one round each.

    Each pair began before the next one. Where one configuration has fewer repeats, the pairs are
    those of equal seeds. Without so many such pairs the list is empty.
    """
    pairs = _matched(ordered(one), ordered(other))
    times = [[run.started for run in pair] for pair in pairs]
    if len(pairs) < fewest or not all(map(all, times)):
        return []
    return pairs if all(max(now) < min(after) for now, after in pairwise(times)) else []


def _matched(one: Sequence[Run], other: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return the repeats of two configurations side by side, in the order in which they began."""
    if len(one) == len(other):
        return list(zip(one, other, strict=True))
    mine, theirs = ({run.config.get("seed"): run for run in side} for side in (one, other))
    if (len(mine), len(theirs)) != (len(one), len(other)):  # seeds that tell no repeats apart
        return []
    return [(run, theirs[seed]) for seed, run in mine.items() if seed in theirs]


def ratio(what: str, one: Sequence[Run], other: Sequence[Run]) -> Spread | None:
    """Return a quantity of some repeats divided by that of others, and its range.

    Of repeats that took turns it is the median of the ratios in each round. Otherwise it is the
    ratio of the medians, and the range is that of all pairs of repeats.
    """
    mine, theirs = (values(what, runs) for runs in (one, other))
    if not mine or not theirs or min(theirs) <= 0:
        return None
    complete = (len(mine), len(theirs)) == (len(one), len(other))
    pairs = list(zip(one, one, strict=True)) if one is other else rounds(one, other)
    if complete and pairs:
        sides = (values(what, side) for side in zip(*pairs, strict=True))
        return spread(a / b for a, b in zip(*sides, strict=True))
    return Spread(
        statistics.median(mine) / statistics.median(theirs),
        min(mine) / max(theirs),
        max(mine) / min(theirs),
        min(len(mine), len(theirs)),
    )
