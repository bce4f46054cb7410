"""Plans which examples each step of one worker uses.

The global plan is a pure function of (seed, epoch): every worker computes its own part of it, so
that no index ever travels and any machine gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from manyhands import value_checks
from manyhands.config.parse import LABELLED, SHARDED, SHARED_OUT, Partition, parse_partition
from manyhands.data.fixed_shards import apportion, check_shares, shards
from manyhands.data.shuffle import draws, permutation
from manyhands.errors import ConfigError

Shares: TypeAlias = Callable[[int], Sequence[int]]
"""Each worker's examples of a whole batch, at an epoch's step; asked when the step comes."""

FEWEST = 2  # of one example alone, BatchNorm would have no statistics


class Share(NamedTuple):
    """One worker's share of one update.

    Attributes:
        indices: Into the training set; shape (count,) int64. Empty where there is nothing left for
            this worker, which joins the update all the same.
        total: The examples behind the whole update, over all workers.
    """

    indices: np.ndarray
    total: int

    @property
    def examples(self) -> int:
        """The number of this worker's examples in the update."""
        return len(self.indices)


class ShareSource(Protocol):
    """Shares that a worker has in addition to its own part of the data."""

    def shares(self, epoch: int) -> Iterator[Share]:
        """Yield the shares of one epoch."""

    def steps(self, epoch: int) -> int:
        """Return the number of shares."""


class Cuts(NamedTuple):
    """The bounds of one worker's steps in its order of an epoch; each of shape (steps,)."""

    start: np.ndarray
    stop: np.ndarray
    total: np.ndarray


@dataclass(frozen=True, eq=False)
class Plan:
    """The order in which one worker uses its examples.

    An epoch has ceil(examples / batch_size) updates, the last batch smaller and kept. Making a plan
    is cheap: shards and orders are computed when they are first asked for.

    Guarantees:
        - balanced and all shards: over the workers, an epoch holds every example exactly once.
        - balanced: an update's examples are the same set for any number of workers.
        - Without whole batches all workers take the same number of steps, and every total is exact:
          `batch_size`, or what is left for an epoch's last update.

    Args:
        partition: One of the ways in `manyhands.data.fixed_shards`.
        examples: Size of the training set.
        batch_size: Examples behind one update, over all workers; of one worker with
            `whole_batches`.
        rank: This worker, from 0.
        size: How many workers there are.
        seed: Together with the epoch, all that the order depends on.
        labels: The classes, (examples,); `stratified`, `dirichlet` and `by-label` need them.
        ids: Record ids for `by-id`, (examples,); the row numbers where none are given.
        shares: What part of the whole each worker takes, for `balanced` and `random-partition`.
        whole_batches: Workers do not step together: each takes batches of `batch_size` alone.
        alive: The workers that are left, where some have died: every update keeps its examples,
            since each of them takes near-equal parts of the dead workers' shares beside its own.
        estates: What this worker takes over of the dead, after its own, where workers do not step
            together.

    Raises:
        ConfigError: If these do not fit together.
    """

    partition: str
    _: KW_ONLY
    examples: int
    batch_size: int
    rank: int
    size: int
    seed: int
    labels: np.ndarray | None = None
    ids: Sequence[object] | np.ndarray | None = None
    shares: Sequence[float] | None = None
    whole_batches: bool = False
    alive: tuple[int, ...] | None = None
    estates: tuple[ShareSource, ...] = ()

    def __post_init__(self) -> None:
        value_checks.at_least(1, examples=self.examples, batch_size=self.batch_size, size=self.size)
        value_checks.between(0, self.size - 1, rank=self.rank)
        self._check_counts()
        kind = self.parsed.kind
        if kind in LABELLED and self.labels is None:
            raise ConfigError(f"partition {kind} needs classes; this data has numbers as targets")
        if self.ids is not None and kind != "by-id":
            raise ConfigError(f"ids are given; partition {kind} would ignore them. Use by-id")
        for name, values in (("labels", self.labels), ("ids", self.ids)):
            if values is not None and len(values) != self.examples:
                raise ConfigError(f"{name} has {len(values)} entries; expected {self.examples}")
        if self.shares is not None:
            whole = self.whole_batches and kind == "balanced"
            if kind not in SHARED_OUT or whole:
                dealt = f"{kind} with whole batches" if whole else kind
                raise ConfigError(
                    f"shares are given; partition {dealt} would ignore them. Use random-partition"
                )
            check_shares(self.shares, self.size)

    def _check_counts(self) -> None:
        if self.size > self.examples:
            raise ConfigError(
                f"{self.size} workers for {self.examples} training examples; "
                f"use {self.examples} workers at most"
            )
        if not self.whole_batches and self.batch_size < self.size:
            raise ConfigError(
                f"batch_size is {self.batch_size}, less than the {self.size} workers it is split "
                f"over; use a batch_size of {self.size} or more, or fewer workers"
            )

    @cached_property
    def parsed(self) -> Partition:
        """The parsed name of the partition."""
        return parse_partition(self.partition)

    @property
    def updates(self) -> int:
        """The number of global batches in an epoch."""
        return -(-self.examples // self.batch_size)

    def steps(self, epoch: int) -> int:
        """Return the number of steps of this worker in an epoch."""
        return len(self._cuts.start) + sum(estate.steps(epoch) for estate in self.estates)

    def largest_step(self) -> int:
        """Return the number of examples of this worker's largest step; at least one."""
        return max((len(share.indices) for share in self.epoch(1)), default=0) or 1

    def epoch(self, epoch: int, start: int = 0, shares: Shares | None = None) -> Iterator[Share]:
        """Yield this worker's shares of an epoch, from step `start` on.

        With `shares` (balanced only) each global batch is cut by what they say at that step; one
        that is not whole leaves nobody with fewer than FEWEST, or is cut equally if it must.
        """
        return self._taken(self.rank, epoch, start, shares)

    def _taken(self, rank: int, epoch: int, start: int, shares: Shares | None) -> Iterator[Share]:
        """Yield a worker's shares: its own, and its parts of dead workers' shares."""
        own = self._shares(rank, epoch, start, shares)
        if self.alive is None:
            yield from own
            if rank == self.rank:
                more = (share for estate in self.estates for share in estate.shares(epoch))
                yield from islice(more, max(0, start - len(self._cuts.start)), None)
            return
        place, count = self.alive.index(rank), len(self.alive)
        dead = sorted(set(range(self.size)) - set(self.alive))
        lost = [self._shares(other, epoch, start, shares) for other in dead]
        for mine, *theirs in zip(own, *lost, strict=True):
            left = [share.indices for share in theirs]
            parts = [i[place * len(i) // count : (place + 1) * len(i) // count] for i in left]
            yield Share(np.concatenate([mine.indices, *parts]), mine.total)

    def _shares(self, rank: int, epoch: int, start: int, shares: Shares | None) -> Iterator[Share]:
        order = self._order(epoch, rank)
        for begin, end, total in self._steps(rank, start, shares):
            yield Share(order[begin:end], total)

    @property
    def shard(self) -> np.ndarray:
        """This worker's own examples, where the partition gives it some for good; (count,)."""
        return self._shards[self.rank]

    def describe(
        self, epoch: int, shares: Shares | None = None, *, classes: int | None = None
    ) -> dict[str, object]:
        """Return which worker uses what in an epoch, in the format of the record's `partition`.

        `seen` counts the examples that any worker saw, `twice` those seen more than once; `classes`
        is None where the targets are numbers, else a count for each of the data's `classes`, also
        those of which a small part of the data has no example.
        """
        times = np.zeros(self.examples, dtype=np.int64)
        workers = []
        for rank in self.alive or range(self.size):
            mine = np.bincount(self.indices(epoch, rank, shares), minlength=self.examples)
            times += mine
            counts = None
            if self.labels is not None:
                counts = np.bincount(self.labels, weights=mine, minlength=classes or 0)
            workers.append(
                {
                    "rank": rank,
                    "examples": int(mine.sum()),
                    "unique": int(np.count_nonzero(mine)),
                    "classes": None if counts is None else counts.astype(int).tolist(),
                }
            )
        return {
            "kind": self.partition,
            "epoch": epoch,
            "workers": workers,
            "seen": int(np.count_nonzero(times)),
            "twice": int(np.count_nonzero(times > 1)),
        }

    def indices(self, epoch: int, rank: int, shares: Shares | None = None) -> np.ndarray:
        """Return the examples that a worker uses in an epoch, in their order; (count,) int64."""
        parts = [share.indices for share in self._taken(rank, epoch, 0, shares)]
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def _steps(
        self, rank: int, start: int, shares: Shares | None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the bounds of a worker's steps in its order, and their totals."""
        if shares is None:
            yield from zip(*(c[start:].tolist() for c in self._cuts_of(rank)), strict=True)
            return
        assert self.parsed.kind == "balanced" and not self.whole_batches  # noqa: PT018
        for step in range(start, self.updates):
            first = step * self.batch_size
            total = min(self.batch_size, self.examples - first)
            parts = tuple(shares(step))
            cut = _edges if total == self.batch_size else _short_edges
            edges = cut(total, self.size, parts)
            yield first + int(edges[rank]), first + int(edges[rank + 1]), total

    @cached_property
    def _shards(self) -> list[np.ndarray]:
        return shards(
            self.parsed,
            examples=self.examples,
            size=self.size,
            seed=self.seed,
            labels=None if self.labels is None else np.asarray(self.labels),
            ids=self.ids,
            shares=self.shares,
        )

    def _order(self, epoch: int, rank: int) -> np.ndarray:
        """The examples that a worker's cuts are taken from, in their order of that epoch."""
        if self.parsed.kind == "balanced":
            return permutation(self.examples, self.seed, epoch, "epoch")
        if self.parsed.kind == "random-sampling":
            draw = draws if self.parsed.replace else _distinct
            count = int(self._cuts_of(rank).stop.max(initial=0))
            return draw(count, self.examples, self.seed, epoch, "draw", rank)
        shard = self._shards[rank]
        order: np.ndarray = shard[permutation(len(shard), self.seed, epoch, "shard", rank)]
        return order

    @cached_property
    def _cuts(self) -> Cuts:
        return self._cuts_of(self.rank)

    def _cuts_of(self, rank: int) -> Cuts:
        if self.parsed.kind == "balanced":
            return self._dealt(rank) if self.whole_batches else self._split_batches(rank)
        if self.parsed.kind in SHARDED:
            length = len(self._shards[rank])
            return self._whole(length) if self.whole_batches else self._deal_shards(rank)
        if self.whole_batches:
            return self._whole(apportion(self.examples, self.size)[rank])
        cuts = self._split_batches(rank)
        stop = np.cumsum(cuts.stop - cuts.start)
        return Cuts(stop - (cuts.stop - cuts.start), stop, cuts.total)

    def _split_batches(self, rank: int) -> Cuts:
        """Cut each global batch over the workers."""
        first = np.arange(self.updates) * self.batch_size
        total = np.minimum(self.batch_size, self.examples - first)
        shares = None if self.shares is None else tuple(self.shares)
        full = _edges(self.batch_size, self.size, shares)[rank : rank + 2]
        last = _edges(int(total[-1]), self.size, shares)[rank : rank + 2]
        start, stop = first + full[0], first + full[1]
        start[-1], stop[-1] = first[-1] + last[0], first[-1] + last[1]
        return Cuts(start, stop, total)

    def _dealt(self, rank: int) -> Cuts:
        """Deal the global batches to the workers in turn."""
        start = np.arange(rank, self.updates, self.size) * self.batch_size
        stop = np.minimum(start + self.batch_size, self.examples)
        return Cuts(start, stop, stop - start)

    def _deal_shards(self, rank: int) -> Cuts:
        """Cut a worker's shard by the updates that it takes part in."""
        edges, total = self._shard_edges[:, rank], np.diff(self._shard_edges.sum(axis=1))
        return Cuts(edges[:-1], edges[1:], total)

    @cached_property
    def _shard_edges(self) -> np.ndarray:
        """How much of each shard is used up before each update; shape (updates + 1, size).

        The shards are merged in proportion to their lengths (example i of n stands at (i + ½) / n,
        at a tie the lower rank first), and the merged order is cut into global batches: each has
        exactly `batch_size` examples but the last, whatever the shards' lengths.
        """
        lengths = [len(shard) for shard in self._shards]
        places = np.concatenate([(2 * np.arange(n) + 1) / (2 * n) for n in lengths if n])
        owner = np.repeat(np.arange(self.size), lengths)[np.argsort(places, kind="stable")]
        step = np.arange(self.examples) // self.batch_size
        counts = np.bincount(step * self.size + owner, minlength=self.updates * self.size)
        edges = np.zeros((self.updates + 1, self.size), dtype=np.int64)
        np.cumsum(counts.reshape(self.updates, self.size), axis=0, out=edges[1:])
        return edges

    def _whole(self, length: int) -> Cuts:
        """Cut one worker's examples into batches of its own."""
        start = np.arange(0, length, self.batch_size)
        stop = np.minimum(start + self.batch_size, length)
        return Cuts(start, stop, stop - start)


def _distinct(count: int, below: int, *key: int | str) -> np.ndarray:
    return permutation(below, *key)[:count]


@lru_cache(maxsize=64)
def _edges(count: int, size: int, shares: tuple[float, ...] | None) -> np.ndarray:
    """Return where the parts of `count` begin and end; shape (size + 1,)."""
    return np.concatenate([[0], np.cumsum(apportion(count, size, shares))])


@lru_cache(maxsize=64)
def _short_edges(count: int, size: int, shares: tuple[int, ...]) -> np.ndarray:
    """Return the edges of a batch that is shorter than the one these shares are parts of.

    Nobody has fewer than FEWEST; what is left follows what the shares have above it. Where there is
    too little for that, the parts are equal.
    """
    left = count - FEWEST * size
    if left < 0:
        return _edges(count, size, None)
    above = tuple(max(share - FEWEST, 0) for share in shares)
    return _edges(left, size, above) + FEWEST * np.arange(size + 1)
