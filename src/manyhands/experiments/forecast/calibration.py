"""What was measured of a machine and a model: the numbers that every forecast starts from."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from manyhands.errors import ConfigError

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Point:
    """One worker's step on one batch size, while the others do the same and nobody talks.

    Attributes:
        batch: Examples in the batch.
        seconds: Mean time of a step: its batch, its gradient, its update.
        update: The part of it that the update takes.
        met: Time per step if all meet after every so many, by that number: the slowest counts.
        spread: Quantiles of a step's time over its mean, from the lowest to the highest.
        without_core: The largest part of these steps in which a worker had no core; None in
            calibrations of older versions.
    """

    batch: int
    seconds: float
    update: float
    met: Mapping[int, float]
    spread: tuple[float, ...]
    without_core: float | None = None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Step times against the batch size, with so many workers on the host and threads each."""

    workers: int
    threads: int
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """What talking costs a group on one host.

    Attributes:
        workers: Processes in the group.
        allreduce: Seconds to sum the model's vector, by algorithm, right after a gradient.
        agree: Seconds to agree whether to go on: on the highest of a few numbers.
        latency: Seconds of one exchange of next to nothing with both neighbours.
        per_byte: Seconds per byte more in such an exchange, over all neighbours.
    """

    workers: int
    allreduce: Mapping[str, float]
    agree: float
    latency: float
    per_byte: float


@dataclass(frozen=True, kw_only=True)
class Service:
    """A parameter server's part of a step: one push to one master, and its answer.

    Attributes:
        busy: Seconds that the master works on a push of next to nothing.
        busy_per_byte: Seconds more for each byte of its part of the vector.
        trip: Seconds of the way there and back, packing and unpacking included.
        trip_per_byte: Seconds more for each byte.
    """

    busy: float
    busy_per_byte: float
    trip: float
    trip_per_byte: float


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Whole steps of `sync`, measured to check forecasts by; no forecast starts from them.

    Attributes:
        workers: How many stepped together.
        threads: Threads of each.
        batch: Examples of each.
        seconds: Mean time of a step, its all-reduce included.
    """

    workers: int
    threads: int
    batch: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """One machine and one model.

    Attributes:
        machine: What it was measured on.
        options: The options that decide a step: model, data, batch_size, optimizer …
        cores: Cores of a host.
        parameters: Numbers in the model's vector.
        itemsize: Bytes of each.
        layers: Numbers in each of its layers.
        examples: Examples in the training set.
        add_per_byte: Seconds to add one byte of a vector to another.
        curves: Step times.
        groups: Costs of talking, by size.
        service: A parameter server's costs; None where it was not measured.
        held_out: What forecasts are checked by; empty in calibrations of older versions.
    """

    machine: Mapping[str, Any]
    options: Mapping[str, Any]
    cores: int
    parameters: int
    itemsize: int
    layers: tuple[int, ...]
    examples: int
    add_per_byte: float
    curves: tuple[Curve, ...]
    groups: tuple[Group, ...]
    service: Service | None = None
    held_out: tuple[HeldOut, ...] = ()

    @property
    def most(self) -> int:
        """The most workers that were measured."""
        return max(group.workers for group in self.groups)

    @property
    def nbytes(self) -> int:
        """Bytes of the model's vector."""
        return self.parameters * self.itemsize

    @property
    def without_core(self) -> float | None:
        """The largest part of a measurement in which a worker had no core, though enough exist.

        None where it was not measured.
        """
        parts = [
            point.without_core
            for curve in self.curves
            for point in curve.points
            if point.without_core is not None and curve.workers * curve.threads <= self.cores
        ]
        return max(parts, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"schema": SCHEMA, **asdict(self)}

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> Calibration:
        """Return what `as_dict` gave, after a way through JSON."""
        try:
            if record["schema"] != SCHEMA:
                raise ValueError("of another version")
            plain = {f.name: record[f.name] for f in fields(Calibration) if f.name != "held_out"}
            plain["held_out"] = tuple(HeldOut(**row) for row in record.get("held_out", ()))
            plain["layers"] = tuple(record["layers"])
            plain["curves"] = tuple(_curve(row) for row in record["curves"])
            plain["groups"] = tuple(Group(**row) for row in record["groups"])
            plain["service"] = Service(**record["service"]) if record["service"] else None
            return Calibration(**plain)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"the calibration cannot be read ({type(error).__name__}: {error}); expected what "
                "`manyhands predict` wrote: measure again"
            ) from None


def _curve(row: Mapping[str, Any]) -> Curve:
    points = tuple(
        Point(
            **{
                **point,
                "met": {int(k): float(v) for k, v in point["met"].items()},
                "spread": tuple(point["spread"]),
            }
        )
        for point in row["points"]
    )
    return Curve(workers=row["workers"], threads=row["threads"], points=points)


def interpolate(x: float, xs: Sequence[float], ys: Sequence[float], *, beyond: bool) -> float:
    """Return y at x on the broken line through the points; outside, along its ends or level.

    Args:
        x: Where.
        xs: Rising places of the points.
        ys: Their values.
        beyond: Go on along the last (or first) piece outside of the points, instead of level.
    """
    if len(xs) == 1 or (not beyond and not xs[0] < x < xs[-1]):
        return ys[0] if x <= xs[0] else ys[-1]
    right = min(max(bisect.bisect_left(xs, x), 1), len(xs) - 1)
    x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
