"""Fit Amdahl's and Gustafson's laws to measured speed-ups, by least squares.

Amdahl, the same work at every P:        S(P) = 1 / (f + (1 - f) / P)
Gustafson, work that grows with P:       S(P) = P - f (P - 1)

P: workers; f: the serial fraction, between 0 and 1. Both have S(1) = 1, so the measured speed-ups
are first divided by the one at P = 1 (`unit`) where that was measured.

A fraction is no better known than the speed-ups are. Its range is that of the fits to the lowest
and to the highest speed-ups of the repeats, and of those that leave one of the points out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from manyhands.report.analysis.spread import Spread

Law = Callable[[float, float], float]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted law.

    Attributes:
        law: "Amdahl" or "Gustafson".
        serial: The serial fraction.
        unit: The speed-up at P = 1, which the curve starts from.
        residual: Root mean square of measured minus fitted speed-up; None with a single point.
        points: How many points with more than one worker were fitted.
        limit: The most workers among them.
        least: The lower end of the serial fraction's range.
        most: Its upper end; both are None where neither repeats nor points tell.
    """

    law: str
    serial: float
    unit: float
    residual: float | None
    points: int
    limit: float
    least: float | None = None
    most: float | None = None

    def at(self, workers: float) -> float:
        """Return the fitted speed-up for that many workers."""
        return self.unit * LAWS[self.law](self.serial, workers)

    @property
    def bound(self) -> float | None:
        """Return the speed-up that Amdahl's law never passes; None where there is no bound."""
        return self.unit / self.serial if self.law == "Amdahl" and self.serial > 0 else None


def amdahl(serial: float, workers: float) -> float:
    """Return the speed-up for a fixed amount of work."""
    return 1 / (serial + (1 - serial) / workers)


def gustafson(serial: float, workers: float) -> float:
    """Return the speed-up for work that grows with the workers."""
    return workers - serial * (workers - 1)


LAWS: dict[str, Law] = {"Amdahl": amdahl, "Gustafson": gustafson}


def fit(law: str, speedups: Sequence[tuple[float, Spread]], cores: int | None) -> Fit | None:
    """Fit the serial fraction to (workers, speed-up) pairs; None if no point has several workers.

    Only points where every worker has a core of its own are used: neither law describes the others.
    """
    unit = next((s.median for p, s in speedups if p == 1), 1.0)
    held = [(p, s) for p, s in speedups if p > 1 and (cores is None or p <= cores)]
    if not held or unit <= 0:
        return None
    used = [(p, s.median / unit) for p, s in held]
    serial = _least(law, used)
    least, most = _range(law, held, unit)
    errors = [s - LAWS[law](serial, p) for p, s in used]
    rms = float(np.sqrt(np.mean(np.square(errors)))) * unit
    return Fit(
        law=law,
        serial=serial,
        unit=unit,
        residual=rms if len(used) > 1 else None,
        points=len(used),
        limit=max(p for p, _ in used),
        least=least,
        most=most,
    )


def _range(
    law: str, points: Sequence[tuple[float, Spread]], unit: float
) -> tuple[float, float] | tuple[None, None]:
    """Return the ends of the serial fraction's range; empty where nothing tells of it."""
    sets = []
    if all(s.count > 1 for _, s in points):
        sets += [[(p, s.low / unit) for p, s in points], [(p, s.high / unit) for p, s in points]]
    if len(points) > 2:
        medians = [(p, s.median / unit) for p, s in points]
        sets += [[*medians[:i], *medians[i + 1 :]] for i in range(len(medians))]
    if not sets:
        return None, None
    found = [_least(law, each) for each in (*sets, [(p, s.median / unit) for p, s in points])]
    return min(found), max(found)


def _least(law: str, points: Sequence[tuple[float, float]]) -> float:
    """Return the fraction with the least squared error, by a grid that is refined."""
    low, high = 0.0, 1.0
    for _ in range(6):
        grid = np.linspace(low, high, 101)
        errors = [sum((s - LAWS[law](float(f), p)) ** 2 for p, s in points) for f in grid]
        best = int(np.argmin(errors))
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 100)])
    return float(grid[best])
