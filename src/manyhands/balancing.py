"""Shares of the global batch that follow the workers' speeds: `--balance speed`."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.data.partition import apportion

if TYPE_CHECKING:
    from manyhands.worker import Worker

WINDOW = 16  # steps between two decisions
NEWEST = 0.5  # the weight of the newest window's speeds
LEAST = 0.1  # the smallest share, as part of an equal one


class Balance:
    """A load balancer for workers that step together.

    ```
    each worker k, every WINDOW steps:
        v_k ← median over the window of (examples / seconds of computing)
        all exchange their v_k                              (one number each)
        s_k ← (1 − α) s_k + α v_k                           (the first window: s_k ← v_k)
        p_k ← s_k / Σ_j s_j, none below LEAST / P or one example
    ```

    v_k: measured speed; s_k: smoothed speed; α: NEWEST; p_k: worker k's share; P: workers.

    The shares rest where all workers need the same time: there v_k is proportional to p_k, also if
    a part of the time does not depend on the share.

    Guarantees:
        - All workers decide the same, since all compute it from the same numbers.
        - An update has the very examples of the unbalanced run. Parts are weighted by their
          number of examples, so the sum of the gradients is the same up to rounding.
        - Nobody is left without work: a worker that becomes faster again is noticed.
    Cost: one gathering of 8 bytes per worker every WINDOW steps.

    Attributes:
        history: [step, examples of a whole batch by worker], from that step on; goes to the record.
    """

    def __init__(self, *, rank: int, size: int, batch_size: int) -> None:
        self.rank = rank
        self.size = size
        self.batch_size = batch_size
        self.speeds: list[float] = []
        self.window: list[float] = []
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
            self.window.append(examples / seconds)
        if worker.step % WINDOW == 0:
            with worker.exchanging():
                measured = worker.comm.gather(self._speed())
            self.decide(worker.step, measured)

    def _speed(self) -> float:
        """Return this worker's speed over the window; where it had no work, what was known."""
        if self.window:
            return statistics.median(self.window)
        return self.speeds[self.rank] if self.speeds else 1.0

    def decide(self, step: int, measured: Sequence[float]) -> None:
        """Let the shares follow these speeds from now on."""
        old = self.speeds or measured
        self.speeds = [s + NEWEST * (v - s) for s, v in zip(old, measured, strict=True)]
        self.window = []
        least = max(LEAST / self.size, 1 / self.batch_size)
        parts = apportion(self.batch_size, self.size, bounded(self.speeds, least)).tolist()
        if parts != self.history[-1][1]:
            self.history.append([step, parts])

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"speeds": self.speeds, "window": self.window, "history": self.history}

    def restore(self, state: Mapping[str, Any], step: int) -> None:
        """Go on with the shares of the checkpoint; another number of workers starts equal."""
        if len(state["history"][-1][1]) == self.size:
            self.speeds, self.window = list(state["speeds"]), list(state["window"])
            self.history[:] = state["history"]
        else:
            self.history[:] = [[step, self.history[0][1]]]


def computing(worker: Worker) -> float:
    """Return the seconds that the last step's gradient took, its batch included."""
    return worker.clock.computed[-1] - worker.clock.begun[-1]


def bounded(speeds: Sequence[float], least: float) -> list[float]:
    """Return shares in proportion to the speeds, but none below `least`; their sum is 1.

    >>> bounded([9.0, 9.0, 1.0, 1.0], 0.1)
    [0.4, 0.4, 0.1, 0.1]
    """
    shares = np.asarray(speeds, dtype=np.float64)
    shares = shares / (shares.max() or 1.0)  # so that the sum of very small ones is no denormal
    raised = np.zeros(len(shares), dtype=bool)
    while True:
        rest = 1 - least * raised.sum()
        found = np.where(raised, least, shares * rest / max(shares[~raised].sum(), 1e-300))
        below = (found < least - 1e-12) & ~raised
        if not below.any() or (raised | below).all():
            return [float(share) for share in found]
        raised |= below
