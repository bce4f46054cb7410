"""What a worker sends for one exchange, as measured and in theory.

n: bytes of the vector; P: workers. Sent by each worker:
    naive                (P - 1) n              everyone to everyone
    allgather            (P - 1) n              the same, from neighbour to neighbour
    ring                 2 (P - 1) / P n        reduce-scatter, then all-gather
    recursive-doubling   log2(P) n              P a power of two
    rabenseifner         2 (P - 1) / P n        P a power of two
    compressed           what the run itself has calculated from the shapes of its model
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from manyhands.report.analysis import run_facts
from manyhands.report.analysis.spread import median
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.records.fields import number
from manyhands.report.records.runs import Process, Run
from manyhands.report.wording.formatting import percent
from manyhands.report.wording.sentences import Fact, fact

EACH: dict[str, Callable[[float], float]] = {
    "naive": lambda p: p - 1,
    "allgather": lambda p: p - 1,
    "ring": lambda p: 2 * (p - 1) / p,
    "recursive-doubling": lambda p: math.log2(p),
    "rabenseifner": lambda p: 2 * (p - 1) / p,
}
POWERS_ONLY = ("recursive-doubling", "rabenseifner")


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What a worker sent for one exchange, beside what the algorithm should need."""

    row: Row
    algorithm: str
    measured: float
    expected: float | None
    vector: float | None

    @property
    def off(self) -> float:
        """By which part measured traffic differs from theory."""
        return abs(self.measured / (self.expected or 1) - 1)

    def off_fact(self) -> Fact:
        """State that part."""
        return fact(
            "bytes per exchange against theory", self.off, how="derived", runs=self.row.runs,
            parameters={"theory": self.expected or 0.0}, text=percent(self.off, 1),
        )  # fmt: skip


def exchanges(summary: Summary) -> tuple[Exchange, ...]:
    """Return the traffic of every configuration with several workers that measured it."""
    found = (_exchange(row) for row in summary.rows if row.workers > 1)
    return tuple(e for e in found if e is not None)


def expected(algorithm: str, workers: int, vector: float) -> float | None:
    """Return the bytes that each worker sends in theory, or None where none is known."""
    if algorithm not in EACH or (algorithm in POWERS_ONLY and workers & (workers - 1)):
        return None
    return EACH[algorithm](workers) * vector


def _exchange(row: Row) -> Exchange | None:
    run = row.runs[0]
    name = _operation(run)
    algorithm = name.removeprefix("allreduce").strip() if name else ""
    if not algorithm or algorithm == "auto":
        algorithm = str(run.config.get("allreduce") or "") if name else ""
    measured = median(
        _sent(p, name) for r in row.runs for p in r.team if p.trains and _sent(p, name)
    )
    if not measured:
        return None
    vector = _vector(run, name)
    theory = expected(algorithm, row.workers, vector) if vector else None
    if algorithm and algorithm == run.config.get("compress"):
        theory = number(run.facts, "compression", "bytes_per_step")
    return Exchange(row=row, algorithm=algorithm, measured=measured, expected=theory, vector=vector)


def _operation(run: Run) -> str:
    """Return the name of the all-reduce that moved most, or an empty string."""
    sums: dict[str, float] = {}
    for process in run.team:
        for name in process.operations:
            if name.startswith("allreduce"):
                sent = number(process.operations, name, "bytes") or 0
                sums[name] = sums.get(name, 0) + sent
    return max(sums, key=lambda name: sums[name]) if sums else ""


def _sent(process: Process, name: str) -> float | None:
    """Return bytes per call of the all-reduce, or where there is none per step.

    What went through shared memory was not sent: it has bytes, and no messages.
    """
    messages = number(process.operations, name, "messages") if name else process.messages
    if messages == 0:
        return None
    sent = number(process.operations, name, "bytes") if name else process.bytes
    calls = number(process.operations, name, "calls") if name else process.steps
    return sent / calls if sent is not None and calls else None


def _vector(run: Run, name: str) -> float | None:
    for process in run.team:
        payload = number(process.operations, name, "payload") if name else None
        calls = number(process.operations, name, "calls") if name else None
        if payload and calls:
            return payload / calls
    return run_facts.vector(run)
