"""What is known of one run (staleness, bytes, rates …), as numbers and as facts to state.

A fact names its quantity, and its value is the median over the runs that it names.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from manyhands.report.analysis.spread import Spread, spread
from manyhands.report.records.fields import finite, mapping, number, sequence, total
from manyhands.report.records.runs import Run
from manyhands.report.wording.sentences import Fact, fact

ITEM = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # bytes of one number
PHASES = ("compute", "update", "communicate", "wait", "idle")  # of a worker
Quantity = Callable[[Run], float | None]


def vector(run: Run) -> float | None:
    """Return the bytes of one vector of all parameters."""
    parameters, item = number(run.model, "parameters"), ITEM.get(str(run.model.get("dtype")))
    return parameters * item if parameters and item else None


def staleness(run: Run) -> float | None:
    """Return how many updates by others came before an update, on average."""
    return number(run.facts, "staleness", "mean")


def rate(run: Run) -> float | None:
    """Return the learning rate of an update, after what `lr_scaling` makes of the one given."""
    found = number(run.config, "lr")
    factor = {"linear": run.workers, "sqrt": run.workers**0.5, "inverse": 1 / run.workers}
    return None if found is None else found * factor.get(str(run.config.get("lr_scaling")), 1)


def masters(run: Run) -> float | None:
    """Return the number of masters."""
    return float(sum(process.role == "master" for process in run.team)) or None


def push_bytes(run: Run) -> float | None:
    """Return the bytes that a worker sends to all masters together for one batch."""
    return _mean(
        sent / calls
        for process in run.team
        if (calls := number(process.operations, "push", "calls"))
        and (sent := number(process.operations, "push", "bytes"))
    )


def push_seconds(run: Run) -> float | None:
    """Return how long a master takes for one push, on average."""
    return _mean(
        busy / pushes
        for one in _masters(run)
        if (pushes := number(one, "pushes")) and (busy := number(one, "busy")) is not None
    )


def busiest(run: Run) -> float | None:
    """Return which part of its time the busiest master works."""
    return max(_busy(run), default=None)


def together(run: Run) -> float | None:
    """Return the work of all masters, as a part of one process's time."""
    return sum(_busy(run)) or None


def _busy(run: Run) -> list[float]:
    """Return which part of its time each master works."""
    return [
        busy / (busy + idle)
        for one in _masters(run)
        if (busy := number(one, "busy")) is not None
        and (idle := number(one, "idle")) is not None
        and busy + idle > 0
    ]


def computing(run: Run) -> float | None:
    """Return the seconds that all workers together compute and update."""
    return total(t for p in run.team if p.trains for t in (p.compute, p.update))


def share(runs: Sequence[Run], *phases: str) -> Spread | None:
    """Return which part of the training time the workers spent in some phases, of each repeat."""
    return spread(_part(run, phases) for run in runs)


def _part(run: Run, phases: Sequence[str]) -> float | None:
    """Return which part of one run its workers spent in some phases; None if none was measured."""
    team = [p for p in run.team if p.trains]
    known = [t for p in team for phase in phases if (t := getattr(p, phase)) is not None]
    whole = (run.seconds or 0.0) * len(team)
    return math.fsum(known) / whole if known and whole > 0 else None


def skew(run: Run) -> float | None:
    """Return how far the workers' mixes of classes are from the whole's, on average.

    For one worker it is half the sum of the differences between the proportions of its classes and
    those of all data: 0 for the same mix, near 1 for classes that no other worker has.
    """
    counts = [_counts(worker) for worker in sequence(run.partition.get("workers"))]
    if len(counts) < 2 or not all(counts) or len({len(row) for row in counts}) > 1:
        return None
    whole = [sum(column) for column in zip(*counts, strict=True)]
    return fmean(_distance(row, whole) for row in counts if sum(row))


def seen(run: Run) -> float | None:
    """Return which part of the examples an epoch uses."""
    used, of = number(run.partition, "seen"), number(run.data, "train")
    return used / of if used is not None and of else None


def _counts(worker: Any) -> list[float]:
    found = [finite(count) for count in sequence(mapping(worker).get("classes"))]
    return [count for count in found if count is not None]


def _distance(row: Sequence[float], whole: Sequence[float]) -> float:
    pairs = zip(row, whole, strict=True)
    return sum(abs(mine / sum(row) - all_of / sum(whole)) for mine, all_of in pairs) / 2


def _masters(run: Run) -> list[Any]:
    return [mapping(one) for one in sequence(run.facts.get("masters"))]


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def step_bytes(run: Run) -> float | None:
    """Return the bytes that a worker sends per step, over the whole run."""
    return _mean(
        process.bytes / process.steps
        for process in run.team
        if process.trains and process.bytes is not None and process.steps
    )


QUANTITIES: dict[str, Quantity] = {
    "seconds": lambda run: run.seconds,
    "accuracy": lambda run: run.accuracy,
    "score": lambda run: run.score,
    "examples per second": lambda run: (
        run.examples / run.seconds if run.examples and run.seconds else None
    ),
    "bytes": lambda run: run.bytes,
    "bytes of the parameters": vector,
    "mean staleness": staleness,
    "learning rate": rate,
    "limit of staleness": lambda run: number(run.config, "staleness"),
    "masters": masters,
    "bytes per push": push_bytes,
    "seconds per push": push_seconds,
    "busiest master": busiest,
    "masters together": together,
    "bytes per step": step_bytes,
    "outer steps": lambda run: number(run.facts, "outer", "steps"),
    "rounding error of an exchange": lambda run: number(run.facts, "outer", "error"),
    "seconds of computing": computing,
    "skew": skew,
    "examples seen": seen,
}


def values(what: str, runs: Iterable[Run]) -> list[float]:
    """Return a quantity of every run that measured it."""
    return [value for run in runs if (value := QUANTITIES[what](run)) is not None]


def median(what: str, runs: Sequence[Run]) -> float | None:
    """Return the median of a quantity over some runs."""
    known = values(what, runs)
    return statistics.median(known) if known else None


def stated(what: str, runs: Sequence[Run], form: Callable[[float], str]) -> Fact | None:
    """Return the fact of a quantity's median over some runs."""
    value = median(what, runs)
    return None if value is None else fact(what, value, runs=runs, text=form(value))
