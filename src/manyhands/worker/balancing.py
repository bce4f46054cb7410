"""Shares of the global batch that follow the workers' speeds: `--balance speed`."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from manyhands.data.fixed_shards import apportion
from manyhands.data.worker_batch_plan import FEWEST

if TYPE_CHECKING:
    from manyhands.worker.worker import Worker

WINDOW = 16  # steps between two decisions
FIRST = (4, 8)  # steps after which the first decisions fall, before windows have their full length
KEPT = 0.5  # what a window counts for at the next one
LEAST = 0.02  # the smallest share, as part of an equal one
GAIN = 0.01  # the part of a step's time that new parts must save
TRUST = 0.01  # how much the parts must have varied (squared, relative) for a line to be believed
ODD = 2.0  # by how much a window may miss what is known, before that is forgotten
SLOPE = 0.1  # the smallest part of a worker's time that is taken to depend on its examples


class Line(NamedTuple):
    """A worker's seconds for n examples: fixed + each · n."""

    fixed: float
    each: float

    def __call__(self, n: float) -> float:
        """Return the seconds for so many examples."""
        return self.fixed + self.each * n


class Balance:
    """A load balancer for workers that step together.

    ```
    each worker k, every WINDOW steps (the first two times sooner):
        t_k ← median over the window of the seconds of computing; n_k: its examples
        all exchange their (n_k, t_k)                        (two numbers each)
        a_k, b_k ← the line t = a + b n through the windows so far, each counting half the next
        n ← argmin max_k (a_k + b_k n_k), where Σ_k n_k = B and no n_k is below the least
    ```

    A window that no such line could explain, by a factor of ODD, lets those before be forgotten.

    n_k: worker k's part of the batch; B: examples of a whole batch; P: workers. The least is
    LEAST · B / P, and FEWEST examples, which also holds when a short last batch is cut; one too
    small for that is cut equally. The parts stay where they are unless new ones would save GAIN.

    The line always passes through the mean of what was measured, so the parts rest where all
    workers need the same time, however well a_k and b_k are known; the better they are known, the
    sooner the parts are there. As long as a worker's part has hardly changed, a_k is taken for 0.

    Guarantees:
        - All workers decide the same, since all compute it from the same numbers.
        - An update has the very examples of the unbalanced run. Parts are weighted by their
          number of examples, so the sum of the gradients is the same up to rounding.
        - Nobody is left without work: a worker that becomes faster again is noticed.
    Cost: one gathering of two numbers per worker every WINDOW steps.

    Attributes:
        history: [step, examples of a whole batch by worker], from that step on; goes to the record.
        sums: For each worker, over its windows: their weight, n, t, n², n t.
    """

    def __init__(self, *, rank: int, size: int, batch_size: int) -> None:
        self.rank = rank
        self.size = size
        self.batch_size = batch_size
        self.sums: list[list[float]] = [[0.0] * 5 for _ in range(size)]
        self.window: list[list[float]] = []
        self.history: list[Any] = [[0, apportion(batch_size, size).tolist()]]

    def at(self, step: int) -> Sequence[int]:
        """Return the workers' parts of a whole batch at a step of the run."""
        since = bisect_right(self.history, step, key=lambda entry: entry[0])
        parts: Sequence[int] = self.history[max(since - 1, 0)][1]
        return parts

    def after_step(self, worker: Worker, examples: int) -> None:
        """Measure the step that has just ended; at a window's end decide anew. Collective."""
        seconds = computing(worker)
        if examples and seconds > 0:
            self.window.append([examples, seconds])
        if worker.step % WINDOW == 0 or worker.step in FIRST:
            with worker.exchanging():
                measured = worker.comm.gather(self._measured())
            self.decide(worker.step, measured)

    def _measured(self) -> list[float]:
        """Return this worker's examples and seconds over the window; nothing where it had none."""
        return [statistics.median(column) for column in zip(*self.window, strict=True)]

    def decide(self, step: int, measured: Sequence[Sequence[float]]) -> None:
        """Choose the parts from now on, given each worker's examples and seconds of a window."""
        self.window = []
        for sums, row in zip(self.sums, measured, strict=True):
            if row:
                n, t = row
                kept = KEPT if explained(n, t, *sums[:3]) else 0.0
                new = (1.0, n, t, n * n, n * t)
                sums[:] = [kept * old + one for old, one in zip(sums, new, strict=True)]
        if not all(sums[0] for sums in self.sums):
            return
        lines = [fitted(*sums) for sums in self.sums]
        old = self.history[-1][1]
        parts = fastest(lines, self.batch_size, self._least())
        if slowest(lines, parts) < (1 - GAIN) * slowest(lines, old):
            self.history.append([step, parts])

    def _least(self) -> int:
        """Return the smallest part of a whole batch."""
        equal = self.batch_size // self.size
        return max(int(LEAST * equal), min(FEWEST, equal))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"sums": self.sums, "window": self.window, "history": self.history}

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Go on with the shares of the checkpoint; another number of workers starts equal."""
        if len(state["history"][-1][1]) == self.size:
            self.sums = [list(sums) for sums in state["sums"]]
            self.window = [list(pair) for pair in state["window"]]
            self.history[:] = state["history"]
        else:
            self.history[:] = [[step, self.history[0][1]]]


def computing(worker: Worker) -> float:
    """Return the seconds that the last step's gradient took, its batch included."""
    return float(worker.clock.computed[-1] - worker.clock.begun[-1])


def explained(n: float, t: float, weight: float, sum_n: float, sum_t: float) -> bool:
    """Say whether t seconds for n examples can be those of the worker that was measured before.

    Its time may depend on n wholly or not at all; beyond that, and ODD times, its speed has
    changed.
    """
    if not weight:
        return True
    before, ratio = sum_t / weight, n * weight / sum_n
    return min(1, ratio) * before / ODD <= t <= max(1, ratio) * before * ODD


def fitted(weight: float, n: float, t: float, nn: float, nt: float) -> Line:
    """Return the line through weighted measurements of (n, t), from their sums.

    It passes through their mean. Its slope is that of least squares, drawn towards the line through
    the origin where n has hardly varied; neither part of the time is negative.

    >>> fitted(1.0, 10.0, 5.0, 100.0, 50.0)  # one measurement
    Line(fixed=0.0, each=0.5)
    """
    n, t, nn, nt = n / weight, t / weight, nn / weight, nt / weight
    slope = (nt - n * t + TRUST * n * t) / (nn - n * n + TRUST * n * n)
    each = min(max(slope, SLOPE * t / n), t / n)
    return Line(t - each * n, each)


def slowest(lines: Sequence[Line], parts: Sequence[float]) -> float:
    """Return the seconds until all are done."""
    return max(line(n) for line, n in zip(lines, parts, strict=True))


def fastest(lines: Sequence[Line], total: int, least: int) -> list[int]:
    """Return the parts of `total`, none below `least`, with which all are done soonest.

    >>> fastest([Line(0.0, 1.0), Line(0.0, 3.0)], 128, 1)
    [96, 32]
    """
    fixed, each = np.array(lines, dtype=np.float64).T
    # All who have more than the least are done at the same time, found by halving.
    low, high = 0.0, float((fixed + each * total).max())
    for _ in range(64):
        middle = (low + high) / 2
        enough = np.maximum((middle - fixed) / each, least).sum() >= total
        low, high = (low, middle) if enough else (middle, high)
    parts = np.maximum(np.floor((low - fixed) / each), least).astype(np.int64)
    for _ in range(total - int(parts.sum())):  # what rounding down has left over
        parts[(fixed + each * (parts + 1)).argmin()] += 1
    return [int(n) for n in parts]
