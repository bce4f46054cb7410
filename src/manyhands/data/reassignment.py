"""Reassigns the remaining examples of a dead worker to the survivors.

For workers that do not step together. Where they do, every update is shared out anew instead
(`Plan.alive`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.data.worker_batch_plan import Plan, Share


@dataclass(frozen=True)
class Inheritance:
    """One survivor's part of a dead worker's remaining batches: every `count`-th.

    Guarantees: over all survivors, every batch that the dead worker had not done is done once; what
    it had inherited itself is passed on.

    Attributes:
        plan: The dead worker's plan.
        done: How many of its batches it has done, over all epochs.
        place: This survivor's place among those who are left.
        count: How many are left.
        since: This survivor's epoch when the other died; what lay before it is done in it.
    """

    plan: Plan
    done: int
    place: int
    count: int
    since: int

    def shares(self, epoch: int) -> Iterator[Share]:
        """Yield the inherited shares of one of the survivor's own epochs."""
        if epoch < self.since:
            return
        first = 1 if epoch == self.since else epoch
        before = sum(self.plan.steps(e) for e in range(1, first))
        shares = (share for e in range(first, epoch + 1) for share in self.plan.epoch(e))
        for number, share in enumerate(shares, before):
            if number >= self.done and (number - self.done) % self.count == self.place:
                yield share

    def steps(self, epoch: int) -> int:
        """Return the number of inherited batches."""
        return sum(1 for _ in self.shares(epoch))


def examples(plan: Plan, done: int) -> int:
    """Return how many examples were in the first `done` batches of a plan."""
    count, epoch = 0, 1
    while done > 0 and plan.steps(epoch):
        shares = list(islice(plan.epoch(epoch), done))
        count += sum(len(share.indices) for share in shares)
        done, epoch = done - len(shares), epoch + 1
    return count


def reassign(
    plans: Mapping[int, Plan], pushes: Mapping[int, int], epochs: Mapping[int, int]
) -> dict[int, Plan]:
    """Return the survivors' plans, with the remaining examples of the dead workers.

    Args:
        plans: Everybody's plan before, by number.
        pushes: How many batches the dead have done, by number.
        epochs: In which epoch the survivors are, by number.
    """
    left = {}
    for place, number in enumerate(sorted(epochs)):
        parts = tuple(
            Inheritance(plans[dead], done, place, len(epochs), epochs[number])
            for dead, done in sorted(pushes.items())
        )
        left[number] = replace(plans[number], estates=(*plans[number].estates, *parts))
    return left
