"""Whether the repeats of two configurations differ by more than chance: Student's t-test.

The variance is pooled over a family of configurations, since two or three repeats say little about
their own. Several comparisons are corrected together by Holm's method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from manyhands.report.significance import two_sided

LEVEL = 0.05  # of all comparisons of one statement together
Sample = Sequence[float]


def p_value(one: Sample, other: Sample, family: Sequence[Sample] = ()) -> float | None:
    """Return how likely means this far apart are by chance; None where repeats are too few.

    Args:
        one: The values of one configuration, one per repeat.
        other: Those of the other.
        family: All samples whose spread is pooled; by default these two.
    """
    samples = [sample for sample in family or (one, other) if len(sample) > 1]
    freedom = sum(len(sample) - 1 for sample in samples)
    if not one or not other or freedom < 2:
        return None
    squares = math.fsum((v - fmean(sample)) ** 2 for sample in samples for v in sample)
    error = math.sqrt(squares / freedom * (1 / len(one) + 1 / len(other)))
    gap = abs(fmean(one) - fmean(other))
    if error <= 1e-12 * max(gap, 1e-12):
        return 1.0 if gap == 0 else 0.0
    return two_sided(gap / error, freedom)


def told_apart(p_values: Sequence[float | None], level: float = LEVEL) -> list[bool]:
    """Say which comparisons show a difference, by Holm's correction for their number."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    found = [False] * len(p_values)
    for rank, (p, i) in enumerate(known):
        if p > level / (len(known) - rank):
            break
        found[i] = True
    return found
