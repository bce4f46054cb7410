"""Plans the shares of batches whose order the user's source decides: a sampler, or a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np

from manyhands.data.worker_batch_plan import Share
from manyhands.errors import ConfigError


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledPlan:
    """The order of examples of one worker; same interface as `Plan`.

    Guarantees:
        - Over the workers, an epoch holds what the sampler draws, each example as often.
        - An update's examples are the same for any number of workers.

    Args:
        draw: Returns the indices of each update of an epoch, the same in every process.
        rank: This worker, from 0.
        size: How many workers there are.
        whole_batches: Workers do not step together: they take the batches in turn.
    """

    draw: Callable[[int], list[np.ndarray]]
    rank: int
    size: int
    whole_batches: bool = False

    def __post_init__(self) -> None:
        count = len(self._batches(1))
        if self.whole_batches and count < self.size:
            raise ConfigError(
                f"{self.size} workers for {count} batches of an epoch, which they take in turn; "
                f"use {count} workers at most"
            )
        if not count:
            raise ConfigError("the loader gives no batch; expected at least one (drop_last?)")

    @property
    def examples(self) -> int:
        """The number of examples of an epoch."""
        return sum(map(len, self._batches(1)))

    def _batches(self, epoch: int) -> list[np.ndarray]:
        return _drawn(self.draw, epoch)

    def steps(self, epoch: int) -> int:
        """Return the number of steps of this worker in an epoch."""
        count = len(self._batches(epoch))
        return len(range(self.rank, count, self.size)) if self.whole_batches else count

    def largest_step(self) -> int:
        """Return the number of examples of this worker's largest step; at least one."""
        return max((share.examples for share in self.epoch(1)), default=0) or 1

    def epoch(self, epoch: int, start: int = 0, shares: object = None) -> Iterator[Share]:
        """Yield this worker's shares of an epoch, from step `start` on."""
        yield from islice(self._shares(epoch, self.rank), start, None)

    def _shares(self, epoch: int, rank: int) -> Iterator[Share]:
        batches = self._batches(epoch)
        if self.whole_batches:
            yield from (Share(batch, len(batch)) for batch in batches[rank :: self.size])
            return
        for batch in batches:
            first, last = (place * len(batch) // self.size for place in (rank, rank + 1))
            yield Share(batch[first:last], len(batch))

    def describe(
        self, epoch: int, shares: object = None, *, classes: int | None = None
    ) -> dict[str, object]:
        """Return which worker uses what in an epoch, in the format of the record's `partition`."""
        none = [np.empty(0, np.int64)]
        used = [
            np.concatenate([*none, *(share.indices for share in self._shares(epoch, rank))])
            for rank in range(self.size)
        ]
        workers: list[dict[str, object]] = [
            {"rank": rank, "examples": len(i), "unique": len(np.unique(i)), "classes": None}
            for rank, i in enumerate(used)
        ]
        _, times = np.unique(np.concatenate(used), return_counts=True)
        seen, twice = len(times), int((times > 1).sum())
        return {"kind": "loader", "epoch": epoch, "workers": workers, "seen": seen, "twice": twice}


@lru_cache(maxsize=2)
def _drawn(draw: Callable[[int], list[np.ndarray]], epoch: int) -> list[np.ndarray]:
    return draw(epoch)
