"""The linear partition problem: consecutive items in parts whose largest sum is smallest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise


def linear_partition(sizes: Sequence[float], parts: int) -> list[tuple[int, int]]:
    """Divide items of these sizes into consecutive parts, and keep the largest part small.

    >>> linear_partition([1, 1, 1, 100, 1, 1], 3)
    [(0, 3), (3, 4), (4, 6)]

    Returns:
        Each part's items as (first, last + 1); no part is empty.
    """
    ends = list(accumulate(sizes, initial=0))

    @cache
    def best(stop: int, parts: int) -> tuple[float, tuple[int, ...]]:
        """The largest sum when the first `stop` items make `parts` parts, and the cuts."""
        if parts == 1:
            return ends[stop], (stop,)
        bounds = []
        for cut in range(parts - 1, stop):
            largest, cuts = best(cut, parts - 1)
            bounds.append((max(largest, ends[stop] - ends[cut]), (*cuts, stop)))
        return min(bounds)

    cuts = (0, *best(len(sizes), parts)[1])
    return list(pairwise(cuts))
