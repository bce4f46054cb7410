"""How long one update takes: computing, waiting for the slowest, talking; pure functions.

A step of a strategy is put together from what a `Calibration` measured apart: workers that never
talk, and talking alone (`manyhands.experiments.forecast.communication_cost`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyhands.experiments.forecast.calibration import Calibration, Curve, Point, interpolate
from manyhands.experiments.forecast.communication_cost import estimate_agreement, estimate_allreduce
from manyhands.experiments.forecast.placement import Placement
from manyhands.experiments.forecast.simulation import Outcome, Setting, quantile, simulate

_SIMULATED = 2048  # workers up to which every push is simulated
_GRID = 200


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is to be expected of one strategy with one number of workers.

    Attributes:
        step: Seconds from one update of a worker to its next.
        rate: Examples per second, of all workers together.
        compute: Seconds of a step that a worker computes.
        wait: Seconds of it that it waits for others.
        communicate: Seconds of it that it talks.
        staleness: Mean number of others' updates that a gradient is old.
        notes: What this rests on, where it is not measured.
        bound: The rate is an upper bound: a part of the step was not measured.
    """

    step: float
    rate: float
    compute: float
    wait: float
    communicate: float
    staleness: float | None = None
    notes: tuple[str, ...] = field(default=())
    bound: bool = False


def forecast_together(
    known: Calibration,
    placement: Placement,
    *,
    talking: float,
    every: int,
    agree: Callable[[float], int],
    waits: bool = True,
    notes: tuple[str, ...] = (),
) -> Forecast:
    """Return a strategy whose workers step together.

    Args:
        known: What was measured.
        placement: Who trains.
        talking: Seconds of a step that they talk.
        every: Steps between two exchanges, where they wait for the slowest.
        agree: Tells after how many steps they ask each other whether to go on, by a step's seconds.
        waits: They wait for the answer, and so for the slowest; else it may come while
            they take as many steps as that.
        notes: What `talking` rests on.
    """
    here, threads = placement.here(), _threads(known, placement, placement.here())
    compute = met = estimate_compute(known, placement.batch, here, threads)
    asked = agree(compute + talking)
    if placement.workers > 1:
        for _ in range(2):  # who waits less often steps faster, and asks a little later
            often = min(every, asked) if waits else every
            met = max(compute, estimate_meeting(known, placement, here, threads, often))
            asked = agree(met + talking)
    answer = estimate_agreement(known, placement) - (0.0 if waits else asked * (met + talking))
    talk = talking + max(0.0, answer) / asked
    step = met + talk
    return Forecast(
        step=step,
        rate=placement.examples / step,
        compute=compute,
        wait=met - compute,
        communicate=talk,
        notes=(*notes, *_crowding(known, placement.here())),
    )


def forecast_apart(known: Calibration, placement: Placement) -> Forecast:
    """Return a strategy whose workers share memory and never wait (Hogwild)."""
    compute = estimate_compute(
        known, placement.batch, placement.workers, _threads(known, placement, placement.workers)
    )
    spread = estimate_spread(known, placement.batch, placement.workers)
    free = Setting(workers=placement.workers, compute=compute, busy=(0.0,), trip=0.0, spread=spread)
    outcome = simulate(free)
    return Forecast(
        step=compute,
        rate=placement.examples / compute,
        compute=compute,
        wait=0.0,
        communicate=0.0,
        staleness=outcome.mean_staleness,
        notes=_crowding(known, placement.workers),
    )


def forecast_divided(
    known: Calibration, placement: Placement, *, parts: int, alone: float, bubble: float = 0.0
) -> Forecast:
    """Return the least time of a model that is divided between `parts` processes.

    Each takes an equal part of the computing, and what they send each other is free. None of this
    was measured. No process does more examples per second than one that trains alone, even where
    one with fewer threads was measured to be faster.

    Args:
        known: What was measured.
        placement: The groups of `parts` processes, as its workers.
        parts: Processes of a group.
        alone: Examples per second of one process that trains alone.
        bubble: The part of a step in which a process has nothing to do.
    """
    here = placement.here() * parts
    whole = estimate_compute(known, placement.batch, here, _threads(known, placement, here))
    compute = whole / parts
    talking = estimate_allreduce(known, placement, "auto")[0] / parts
    idle = compute / (1 - bubble) - compute
    least = placement.examples / (placement.workers * parts * alone)
    compute += max(0.0, least - (compute + idle + talking))
    step = compute + idle + talking
    return Forecast(
        step=step,
        rate=placement.examples / step,
        compute=compute,
        wait=idle,
        communicate=talking,
        notes=_crowding(known, here),
        bound=True,
    )


def forecast_served(
    known: Calibration, placement: Placement, *, shares: Sequence[float], bound: int | None = None
) -> Forecast:
    """Return a parameter server; `shares` are the parts of the vector that its masters own."""
    if known.service is None:
        raise ValueError("the calibration has no server; it needs two processes to be measured")
    masters, network = len(shares), placement.network
    on_host = placement.here() + (0 if network else masters)
    threads = _threads(known, placement, on_host)
    parts = [share * known.nbytes for share in shares]
    busy = tuple(known.service.busy + part * known.service.busy_per_byte for part in parts)
    trip = known.service.trip + max(parts) * known.service.trip_per_byte
    if network:  # a master's link takes one push after another, and its answers at the same time
        busy = tuple(b + p / network.bandwidth for b, p in zip(busy, parts, strict=True))
        trip += 2 * network.latency
    crowd = float(placement.here())
    outcome, compute = Outcome(0.0, Counter(), 1.0), 0.0
    for _ in range(1 if network else 3):  # masters that work take their part of the cores
        gradient = estimate_compute(
            known, placement.batch, placement.here(), threads
        ) - estimate_update(known, placement.batch, placement.here(), threads)
        compute = (
            gradient * max(1.0, crowd / known.cores) / max(1.0, placement.here() / known.cores)
        )
        spread = estimate_spread(known, placement.batch, placement.here())
        outcome = _simulate_pushes(placement.workers, compute, busy, trip, spread, bound)
        crowd = placement.here() + masters * (1 - outcome.idle)
    step = placement.workers / outcome.rate
    return Forecast(
        step=step,
        rate=outcome.rate * placement.batch,
        compute=compute,
        wait=max(0.0, step - compute - trip - max(busy)),
        communicate=trip + max(busy),
        staleness=outcome.mean_staleness,
        notes=_crowding(known, placement.here() if network else placement.workers + masters),
    )


def _simulate_pushes(
    workers: int,
    compute: float,
    busy: tuple[float, ...],
    trip: float,
    spread: tuple[float, ...],
    bound: int | None,
) -> Outcome:
    """Simulate; with more workers than that is worth, take the bound that a queue has."""
    if workers > _SIMULATED:
        rate = min(workers / (compute + trip + max(busy)), 1 / max(max(busy), 1e-12))
        return Outcome(rate, Counter({workers - 1: 1}), max(0.0, 1 - rate * max(busy)))
    pushes = max(2000, 12 * workers)
    return simulate(
        Setting(
            workers=workers,
            compute=compute,
            busy=busy,
            trip=trip,
            spread=spread,
            bound=bound,
            pushes=pushes,
        )
    )


def estimate_compute(known: Calibration, batch: int, here: int, threads: int) -> float:
    """Return the seconds of a step that talks to nobody, with so many workers on the host."""
    return _at(known, batch, here, threads, lambda p: p.seconds)


def estimate_update(known: Calibration, batch: int, here: int, threads: int) -> float:
    """Return the seconds that the update takes of such a step."""
    return _at(known, batch, here, threads, lambda p: p.update)


def estimate_meeting(
    known: Calibration, placement: Placement, here: int, threads: int, every: int
) -> float:
    """Return the seconds per step where all wait for the slowest after `every` steps.

    Where as many workers were measured, this is theirs. Beyond, steps are taken to be independent
    draws of the measured times, and the slowest of P is expected.
    """
    measured = _at(known, placement.batch, here, threads, lambda p: _met(p, every))
    if placement.workers <= here:
        return measured
    alone = estimate_compute(known, placement.batch, here, threads)
    spread = estimate_spread(known, placement.batch, here)
    slowest = expected_highest(spread, placement.workers) - 1
    if placement.growth in (
        "log",
        "linear",
    ):  # the slowest of many is later than any that was measured
        slowest += _tail(spread, placement.workers)
    return max(measured, alone * (1 + slowest / math.sqrt(every)))


def _tail(spread: Sequence[float], draws: int) -> float:
    """Return by how much the slowest of many draws exceeds the slowest measured, on average.

    The upper half of the times is taken to have an exponential tail.
    """
    count = len(spread) - 1
    slope = (spread[-1] - quantile(spread, 0.5)) / math.log(max(2, count))
    return slope * max(0.0, math.log(draws / max(2, count)))


def expected_highest(spread: Sequence[float], draws: int) -> float:
    """Return the expected largest of so many draws from evenly spaced quantiles.

    The largest of n draws lies below Q(u) with probability uⁿ, so it is Q of the n-th root of an
    even draw.
    """
    levels = [((i + 0.5) / _GRID) ** (1 / draws) for i in range(_GRID)]
    return sum(quantile(spread, level) for level in levels) / _GRID


def estimate_spread(known: Calibration, batch: int, here: int) -> tuple[float, ...]:
    """Return the quantiles that were measured nearest to this."""
    curve = min(known.curves, key=lambda c: (abs(c.workers - here), c.threads))
    return min(curve.points, key=lambda p: abs(math.log(p.batch / batch))).spread


def _at(known: Calibration, batch: int, here: int, threads: int, value: Any) -> float:
    """Return a value between the batch sizes and the numbers of workers that were measured."""
    curves = _curves(known, threads)
    values = [_on(curve.points, batch, value) for curve in curves]
    between = interpolate(here, [c.workers for c in curves], values, beyond=False)
    return between * max(1.0, here / max(known.cores, curves[-1].workers))


def _curves(known: Calibration, threads: int) -> list[Curve]:
    """Return the curves with so many threads, or the nearest; by the number of workers."""
    nearest = min(known.curves, key=lambda c: (abs(c.threads - threads), c.threads)).threads
    return sorted((c for c in known.curves if c.threads == nearest), key=lambda c: c.workers)


def _met(point: Point, every: int) -> float:
    """Return the seconds per step of a point whose workers meet every so many steps."""
    known = sorted(point.met)
    times = [point.met[n] for n in known]
    return interpolate(math.log(every), [math.log(n) for n in known], times, beyond=False)


def _on(points: Sequence[Point], batch: int, value: Any) -> float:
    batches, values = [float(p.batch) for p in points], [value(p) for p in points]
    return max(interpolate(batch, batches, values, beyond=True), 0.0)


def _threads(known: Calibration, placement: Placement, on_host: int) -> int:
    return placement.threads or max(1, known.cores // on_host)


def _crowding(known: Calibration, on_host: int) -> tuple[str, ...]:
    return ("more processes than cores",) if on_host > known.cores else ()
