"""Plans a private run's steps: each draws a secret Poisson sample of the records.

The accountant's amplification holds for this sampler and no other: every record takes part in a
step with probability q, independently of all others and of other steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from manyhands.privacy.keys import PoissonSample


class DrawnShare(NamedTuple):
    """One worker's share of one step.

    Attributes:
        indices: Into the training set; (any number,) int64, often none. Secret.
        total: Examples expected behind the whole update, over all workers.
        examples: How many are expected from this worker; all that anybody else may know.
    """

    indices: np.ndarray
    total: int
    examples: float


@dataclass(frozen=True, eq=False, kw_only=True)
class PoissonPlan:
    """A plan (see `manyhands.data.worker_batch_plan`) whose batches are secret samples.

    Guarantees:
        - Steps are fixed beforehand; an epoch is so many that each record is expected once.
        - Every worker takes part in every step, with no example at all if so it falls.
        - Weights and counts are the expected ones: they say nothing about who was drawn.

    Args:
        sample: Draws from `records`, or from all examples where those are shared.
        records: This worker's own records; None where workers share each sample of all.
        examples: Size of the training set.
        rank: This worker, from 0.
        size: How many workers there are.
        total: Examples expected behind one update.
        share: Examples expected from this worker in a step.
        per_epoch: Steps in an epoch; where it is no whole number, epochs differ by one step.
        partition: The way the records are divided, for the record.
    """

    sample: PoissonSample
    records: np.ndarray | None
    examples: int
    rank: int
    size: int
    total: int
    share: float
    per_epoch: Fraction
    partition: str

    def steps(self, epoch: int) -> int:
        """Return the number of steps of this worker in an epoch."""
        return int(epoch * self.per_epoch) - int((epoch - 1) * self.per_epoch)

    def largest_step(self) -> int:
        """Return the number of examples to reserve; one sample in a billion is larger."""
        return min(self.examples, math.ceil(self.share + 6 * math.sqrt(self.share) + 6))

    def epoch(self, epoch: int, start: int = 0, shares: object = None) -> Iterator[DrawnShare]:
        """Yield this worker's share of every step of an epoch, from step `start` on."""
        for step in range(start, self.steps(epoch)):
            yield DrawnShare(self._drawn(epoch, step), self.total, self.share)

    def _drawn(self, epoch: int, step: int) -> np.ndarray:
        if self.records is not None:
            own: np.ndarray = self.records[self.sample.draw(len(self.records), epoch, step)]
            return own
        drawn = self.sample.draw(self.examples, epoch, step)
        first, last = (r * len(drawn) // self.size for r in (self.rank, self.rank + 1))
        return drawn[first:last]

    def describe(
        self, epoch: int, shares: object = None, *, classes: int | None = None
    ) -> dict[str, object]:
        """Return which worker uses what in an epoch, for the record: expected counts only."""
        expected = round(self.share * self.steps(epoch))
        each = self.examples if self.records is None else self.examples / self.size
        workers = [
            {"rank": rank, "examples": expected, "unique": round(each), "classes": None}
            for rank in range(self.size)
        ]
        return {
            "kind": self.partition,
            "workers": workers,
            "seen": None,
            "twice": None,
            "epoch": epoch,
        }
