"""Fit Amdahl's and Gustafson's laws to measured speed-ups, by least squares.

Amdahl, the same work at every P:        S(P) = 1 / (f + (1 - f) / P)
Gustafson, work that grows with P:       S(P) = P - f (P - 1)

P: workers; f: the serial fraction, between 0 and 1. Both have S(1) = 1, so the measured speed-ups
are first divided by the one at P = 1 (`unit`) where that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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
    """

    law: str
    serial: float
    unit: float
    residual: float | None
    points: int
    limit: float

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


def fit(law: str, speedups: Sequence[tuple[float, float]], cores: int | None) -> Fit | None:
    """Fit the serial fraction to (workers, speed-up) pairs; None if no point has several workers.

    Only points where every worker has a core of its own are used: neither law describes the others.
    """
    unit = next((s for p, s in speedups if p == 1), 1.0)
    used = [(p, s / unit) for p, s in speedups if p > 1 and (cores is None or p <= cores)]
    if not used or unit <= 0:
        return None
    serial = _least(law, used)
    errors = [s - LAWS[law](serial, p) for p, s in used]
    rms = float(np.sqrt(np.mean(np.square(errors)))) * unit
    return Fit(
        law=law,
        serial=serial,
        unit=unit,
        residual=rms if len(used) > 1 else None,
        points=len(used),
        limit=max(p for p, _ in used),
    )


def _least(law: str, points: Sequence[tuple[float, float]]) -> float:
    """Return the fraction with the least squared error, by a grid that is refined."""
    low, high = 0.0, 1.0
    for _ in range(6):
        grid = np.linspace(low, high, 101)
        errors = [sum((s - LAWS[law](float(f), p)) ** 2 for p, s in points) for f in grid]
        best = int(np.argmin(errors))
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 100)])
    return float(grid[best])
