"""The waiting rule of stale synchronous parallel training (SSP, Ho et al. 2013)."""

from __future__ import annotations

from collections.abc import Sequence


class SSPClock:
    """Counts each worker's pushes, and says which workers may continue: c_k − min c ≤ s.

    >>> clock = SSPClock(workers=2, bound=1)
    >>> clock.tick(0)
    >>> clock.release(), clock.lead
    ([0], 1)
    >>> clock.tick(0)
    >>> clock.release()  # two pushes ahead of worker 1
    []
    >>> clock.tick(1)
    >>> clock.release()
    [0, 1]

    Args:
        workers: How many workers there are.
        bound: s, the pushes that a worker may be ahead of the slowest; None: any number.

    Attributes:
        running: c_k of the workers that are still training.
        finished: c_k of the others.
        waiting: Workers that have pushed and were not released since.
        lead: The largest c_k − min c of a released worker so far.
    """

    def __init__(self, workers: int, bound: int | None) -> None:
        self.running = dict.fromkeys(range(workers), 0)
        self.finished: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.bound, self.lead = bound, 0

    def tick(self, k: int) -> None:
        """Count a push of worker k, which now waits."""
        self.running[k] += 1
        self.waiting.add(k)

    def finish(self, k: int) -> None:
        """Leave worker k out of the minimum: it pushes no more."""
        self.finished[k] = self.running.pop(k)

    def release(self) -> list[int]:
        """Return the waiting workers that may continue, by rank; they wait no longer."""
        slowest = min(self.running.values(), default=0)
        released = []
        for k in sorted(self.waiting):
            lead = self.running[k] - slowest
            if self.bound is None or lead <= self.bound:
                self.lead = max(self.lead, lead)
                released.append(k)
        self.waiting.difference_update(released)
        return released

    def counts(self) -> list[int]:
        """Return c_k of all workers, by rank."""
        counts = {**self.running, **self.finished}
        return [counts[k] for k in sorted(counts)]

    def restore(self, counts: Sequence[int]) -> None:
        """Continue from these c_k, with all workers running."""
        self.running = dict(enumerate(counts))
