"""How far forecasts may be off: by measurements held out, and by how costs may grow beyond them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from manyhands.experiments.forecast.calibration import Calibration, HeldOut, Point, interpolate
from manyhands.experiments.forecast.communication_cost import estimate_allreduce
from manyhands.experiments.forecast.placement import GROWTHS, Growth, Placement, compute_factor
from manyhands.experiments.forecast.step_time import forecast_together

_TOLERANCE = 0.1  # a way of growing explains a point if it is no further off, or than the error
DISTURBED = 0.15  # so much of a measurement without a core is more than a quiet machine takes
_NEVER = 1 << 30  # steps between two questions, where nobody asks


@dataclass(frozen=True)
class Uncertainty:
    """What is known of a forecast's error.

    Attributes:
        errors: Of each measurement held out: predicted over measured time, minus one.
        growths: The ways of growing beyond the measured workers that explain the measurements.
        without_core: The largest part of a measurement in which a worker had no core; None:
            unknown.
    """

    errors: tuple[float, ...]
    growths: tuple[Growth, ...]
    without_core: float | None = None

    @property
    def disturbed(self) -> bool:
        """Whether other programs had the cores during a measurement."""
        return self.without_core is not None and self.without_core > DISTURBED

    @property
    def largest(self) -> float | None:
        """The largest error, without its sign."""
        return max((abs(error) for error in self.errors), default=None)

    @property
    def median(self) -> float | None:
        """The median error, without its sign."""
        return statistics.median(abs(error) for error in self.errors) if self.errors else None


def estimate_uncertainty(known: Calibration) -> Uncertainty:
    """Return the errors at the points that can be held out, and the growths that are possible."""
    steps = [_error(known, held) for held in known.held_out]
    errors = [*steps, *(e for curve in known.curves for e in _left_out(curve.points))]
    largest = max(map(abs, errors), default=0.0)
    growths = list_explaining(known, max(_TOLERANCE, largest))
    return Uncertainty(tuple(errors), growths, known.without_core)


def _error(known: Calibration, held: HeldOut) -> float:
    """Return the error of a step of `sync` that was measured and not used."""
    placement = Placement(workers=held.workers, batch=held.batch, threads=held.threads)
    talking, _ = estimate_allreduce(known, placement, "auto")
    predicted = forecast_together(
        known, placement, talking=talking, every=1, agree=lambda _: _NEVER
    )
    return predicted.step / held.seconds - 1


def _left_out(points: Sequence[Point]) -> list[float]:
    """Return the error at each inner batch size, as the others would have predicted it."""
    errors = []
    for i in range(1, len(points) - 1):
        others = [*points[:i], *points[i + 1 :]]
        batches, seconds = [float(p.batch) for p in others], [p.seconds for p in others]
        predicted = interpolate(points[i].batch, batches, seconds, beyond=True)
        errors.append(predicted / points[i].seconds - 1)
    return errors


def list_explaining(known: Calibration, tolerance: float) -> tuple[Growth, ...]:
    """Return the growths that lead from each measured all-reduce to that of the next size.

    Where two sizes or fewer were measured, every growth does.
    """
    sizes = [(g.workers, g.allreduce["auto"]) for g in known.groups if "auto" in g.allreduce]
    fitting = [
        growth
        for growth in GROWTHS
        if all(
            abs(before * compute_factor(growth, size, smaller) / seconds - 1) <= tolerance
            for (smaller, before), (size, seconds) in pairwise(sizes)
        )
    ]
    return tuple(fitting or GROWTHS)
