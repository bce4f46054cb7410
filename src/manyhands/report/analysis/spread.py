"""The median of some repeats, and their range."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of the repeats and the lowest and the highest of them."""

    median: float
    low: float
    high: float
    count: int

    @property
    def half(self) -> float | None:
        """Half the distance from the lowest to the highest; None where one repeat says nothing."""
        return (self.high - self.low) / 2 if self.count > 1 else None


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return median and range of what is known, or None."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known), len(known))


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known, or None."""
    found = spread(values)
    return found.median if found else None
