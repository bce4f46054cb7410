"""Streams shards larger than memory: each worker mixes its row groups in a bounded buffer.

    deal the row groups to the workers, once, by the seed
    for each epoch:
        shuffle this worker's row groups, and cut them into windows
        for each window: mix its rows, cut batches; meanwhile decode the next one, of the next
                         epoch if need be

Guarantees:
    - Over the workers, an epoch holds every example exactly once; no index ever travels.
    - A worker decodes its own row groups and no others.
    - Two windows of rows are in memory, no more.
    - Windows and batches are a pure function of (seed, epoch, workers): a run that goes on from a
      checkpoint finds the same ones.
    - Rows mix within a window only. That is no Poisson sample: a private run is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from manyhands.data.example_batches import Split
from manyhands.data.manifest import MANIFEST, Manifest
from manyhands.data.parquet_shards import Group, Reader, about_shards, open_shards
from manyhands.data.shuffle import permutation
from manyhands.data.stored import About, Stored
from manyhands.data.worker_batch_plan import Share
from manyhands.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

Windows: TypeAlias = Mapping[tuple[int, int], np.ndarray]
"""Row groups of windows, by epoch and number."""
Feed: TypeAlias = Callable[[Windows, Windows], None]
"""Told when batches come from other windows than before: from which, and which ones come next."""

_NONE = np.empty(0, np.int64)
_AWAY = np.iinfo(np.int64).min // 2  # no row is as far as that


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamPlan:
    """The order of examples of one worker that streams; same interface as `Plan`.

    Args:
        lengths: Rows of each row group of the training set; (groups,) int64.
        batch_size: Examples behind one update, over all workers; of one with `whole_batches`.
        window: Rows after which a new window begins, at the next row group.
        rank: This worker, from 0.
        size: How many workers there are.
        seed: Decides who reads what, and the order.
        whole_batches: Workers do not step together: each takes batches of `batch_size` alone.
        epochs: How many there are: after the last one nothing is to come.
        feed: What brings the windows into memory.

    Raises:
        ConfigError: If there is not a row group for every worker.
    """

    lengths: np.ndarray
    batch_size: int
    window: int
    rank: int
    size: int
    seed: int
    whole_batches: bool = False
    epochs: int = 1
    feed: Feed | None = None

    def __post_init__(self) -> None:
        if self.size > len(self.lengths):
            raise ConfigError(
                f"{self.size} workers for {len(self.lengths)} row groups, each streamed by one of "
                f"them; use {len(self.lengths)} workers at most, or leave stream out"
            )

    @property
    def examples(self) -> int:
        """Size of the training set."""
        return int(self.lengths.sum())

    @cached_property
    def starts(self) -> np.ndarray:
        """The first row of each row group; (groups,)."""
        return np.asarray(np.cumsum(self.lengths) - self.lengths)

    @cached_property
    def dealt(self) -> list[np.ndarray]:
        """The row groups of each worker, in turn."""
        order = permutation(len(self.lengths), self.seed, "row groups")
        return [order[rank :: self.size] for rank in range(self.size)]

    @cached_property
    def rows(self) -> np.ndarray:
        """The number of rows of each worker; (size,)."""
        return np.array([self.lengths[groups].sum() for groups in self.dealt])

    @cached_property
    def _cuts(self) -> tuple[np.ndarray, np.ndarray]:
        """The ends of this worker's steps in its order of an epoch, and their totals."""
        own = int(self.rows[self.rank])
        if self.whole_batches:
            ends = np.minimum(np.arange(1, -(-own // self.batch_size) + 1) * self.batch_size, own)
            return ends, np.diff(ends, prepend=0)
        steps = np.arange(-(-self.examples // self.batch_size))
        counts = self.rows // len(steps) + (steps[:, None] < self.rows % len(steps))
        return np.cumsum(counts[:, self.rank]), counts.sum(axis=1)

    def steps(self, epoch: int) -> int:
        """Return the number of steps of this worker in an epoch."""
        return len(self._cuts[0])

    def windows(self, epoch: int) -> list[np.ndarray]:
        """Return the row groups of each of this worker's windows of an epoch."""
        mine = self.dealt[self.rank]
        order = mine[permutation(len(mine), self.seed, epoch, "stream", self.rank)]
        starts = np.cumsum(self.lengths[order]) - self.lengths[order]
        return np.split(order, np.flatnonzero(np.diff(starts // self.window)) + 1)

    def epoch(self, epoch: int, start: int = 0, shares: object = None) -> Iterator[Share]:
        """Yield this worker's shares of an epoch, from step `start` on."""
        windows = self.windows(epoch)
        stops = np.cumsum([self.lengths[window].sum() for window in windows])

        @lru_cache(maxsize=2)
        def mixed(number: int) -> np.ndarray:
            rows = [self.starts[g] + np.arange(self.lengths[g]) for g in windows[number]]
            order = permutation(sum(map(len, rows)), self.seed, epoch, "window", self.rank, number)
            return np.asarray(np.concatenate(rows)[order])

        ends, totals = self._cuts
        begins = np.concatenate([[0], ends[:-1]])
        firsts = np.searchsorted(stops, begins, side="right")
        lasts = np.maximum(firsts, np.searchsorted(stops, ends - 1, side="right"))
        steps = zip(*(v.tolist() for v in (begins, ends, firsts, lasts, totals)), strict=True)
        fed: tuple[int, int] | None = None
        for begin, end, first, last, total in islice(steps, start, None):
            parts = []
            for number in range(first, last + 1) if end > begin else ():
                before = stops[number] - len(mixed(number))
                parts.append(mixed(number)[max(0, begin - before) : end - before])
            if self.feed and parts and fed != (first, last):
                fed = first, last
                due = {(epoch, number): windows[number] for number in range(first, last + 1)}
                self.feed(due, self._next(epoch, windows, last) if first == last else {})
            indices = parts[0] if len(parts) == 1 else np.concatenate([_NONE, *parts])
            yield Share(indices, total)

    def _next(self, epoch: int, windows: Sequence[np.ndarray], number: int) -> Windows:
        """Return the window after one of an epoch, if there is any."""
        if number + 1 < len(windows):
            return {(epoch, number + 1): windows[number + 1]}
        return {(epoch + 1, 0): self.windows(epoch + 1)[0]} if epoch < self.epochs else {}

    def describe(
        self, epoch: int, shares: object = None, *, classes: int | None = None
    ) -> dict[str, object]:
        """Return which worker uses what in an epoch, and how it is mixed, for the record."""
        workers = [
            {"rank": rank, "examples": int(rows), "unique": int(rows), "classes": None}
            for rank, rows in enumerate(self.rows)
        ]
        return {
            "kind": "streamed",
            "epoch": epoch,
            "workers": workers,
            "seen": self.examples,
            "twice": 0,
            "sampling": "every example once an epoch, mixed within windows of about "
            f"{self.window} rows; not a Poisson sample",
        }


def _targets(rows: int, manifest: Manifest) -> Tensor:
    """Return an empty array for the targets of so many rows."""
    import torch

    if manifest.classes is None:
        return torch.empty(rows, 1)
    return torch.empty(rows, dtype=torch.int64)


class Buffer:
    """Two windows in memory: one to draw batches from, and the next, being decoded.

    Where a batch is from two windows, both are full until it is over.
    """

    def __init__(self, reader: Reader, groups: Sequence[Group], window: int) -> None:
        import torch

        manifest = reader.manifest
        self.reader, self.groups, self.window = reader, groups, window
        lengths = np.array([group.rows for group in groups])
        self.starts = np.cumsum(lengths) - lengths
        self.x = torch.empty(2 * window, len(manifest.features))
        self.y = _targets(2 * window, manifest)
        self._x, self._y = self.x.numpy(), self.y.numpy()
        self._shift = np.full(len(groups), _AWAY)  # from a row of a group to its row in here
        self._held: list[tuple[int, int] | None] = [None, None]  # epoch and window of each half
        self._decoding: list[Future[None] | None] = [None, None]
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="shards")

    def feed(self, due: Windows, ahead: Windows) -> None:
        """Load the due windows into memory, and start on the next one."""
        wanted = {**due, **ahead}
        for key, groups in wanted.items():
            if key not in self._held:
                half = next(h for h in (0, 1) if self._held[h] not in wanted)
                self._held[half] = key
                self._decoding[half] = self._pool.submit(
                    self._decode, groups, self._places(half, groups)
                )
        # A row group may be in the last window of an epoch and in the first of the next one: it
        # counts where it is due.
        self._shift[:] = _AWAY
        for key, groups in due.items():
            half = self._held.index(key)
            decoding = self._decoding[half]
            if decoding:
                decoding.result()
            self._shift[groups] = self._places(half, groups) - self.starts[groups]

    def _places(self, half: int, groups: np.ndarray) -> np.ndarray:
        """Return the offset of each row group in its half; (groups,)."""
        lengths = np.array([self.groups[g].rows for g in groups])
        return np.asarray(half * self.window + np.cumsum(lengths) - lengths)

    def _decode(self, groups: np.ndarray, places: np.ndarray) -> None:
        for number, place in zip(groups, places, strict=True):
            group = self.groups[number]
            rows = slice(place, place + group.rows)
            decoded = self.reader.read(group, threads=False, keys=False, x=self._x[rows])
            self._y[rows] = decoded.y

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return examples of the due windows; of others by decoding their row groups."""
        import torch

        owner = self.starts.searchsorted(indices, side="right") - 1
        rows = self._shift[owner] + indices
        if len(rows) and rows.min() < 0:
            return self._direct(indices, owner)
        places = torch.from_numpy(rows)
        return self.x.index_select(0, places), self.y.index_select(0, places)

    def _direct(self, indices: np.ndarray, owner: np.ndarray) -> tuple[Tensor, Tensor]:
        import torch

        x = torch.empty(len(indices), self.x.shape[1])
        y = _targets(len(indices), self.reader.manifest)
        for group in np.unique(owner):
            mine = owner == group
            rows = self.reader.read(self.groups[group], threads=False, keys=False)
            local = indices[mine] - self.starts[group]
            x[mine], y[mine] = torch.from_numpy(rows.x[local]), torch.from_numpy(rows.y[local])
        return x, y


class StreamSplit(Split):
    """Examples that stay in their files until their window is due.

    Attributes:
        lengths: Rows of each row group; (groups,).
        window: Rows after which a new window begins: each has `buffer` rows at least, so that a
            batch is from two of them at the most.
    """

    def __init__(self, reader: Reader, side: str, buffer: int, dtype: str) -> None:
        import torch

        classes = reader.manifest.classes
        self.device, self.resident, self.rows = torch.device("cpu"), True, None
        self.x = torch.empty(0, len(reader.manifest.features))  # what examples look like
        self.y = _targets(0, reader.manifest)
        self.reader = reader
        self.groups = reader.groups(side)
        self.lengths = np.array([group.rows for group in self.groups])
        self.window = window_rows(self.lengths, buffer)
        self.classes = None if classes is None else len(classes)
        self.dtype = getattr(torch, dtype)

    @cached_property
    def _buffer(self) -> Buffer:
        return Buffer(self.reader, self.groups, self.window + int(self.lengths.max()))

    def __len__(self) -> int:
        return int(self.lengths.sum())

    @property
    def labels(self) -> None:
        """None: they are not all in memory."""
        return

    @property
    def labelled(self) -> bool:
        """Whether every example has one class as its target."""
        return self.classes is not None

    def feed(self, due: Windows, ahead: Windows) -> None:
        """Load windows into memory; see `Buffer.feed`."""
        self._buffer.feed(due, ahead)

    def batch(self, indices: np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples at `indices`, ready for the model."""
        return self._typed(*self._buffer.batch(np.asarray(indices)))

    def slices(self, start: int, stop: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the examples start … stop-1 in their order, at most `batch` at a time."""
        import torch

        first = 0
        for group in self.groups:
            begin, end = max(start - first, 0), min(stop - first, group.rows)
            first += group.rows
            if begin >= end:
                continue
            rows = self.reader.read(group, threads=False, keys=False)
            for low in range(begin, end, batch):
                part = slice(low, min(low + batch, end))
                yield self._typed(torch.from_numpy(rows.x[part]), torch.from_numpy(rows.y[part]))

    def _typed(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(self.dtype), y.to(self.dtype) if self.classes is None else y


def window_rows(lengths: np.ndarray, buffer: int) -> int:
    """Return after how many rows a window ends, so that none but the last has less than `buffer`.

    A window begins with the first row group at or after a multiple of it.
    """
    return buffer + int(lengths.max())


class Streamed(Stored):
    """Shards, opened for streaming from their files."""

    def __init__(self, folder: Path, about: About, buffer: int, dtype: str) -> None:
        super().__init__(folder, about, {}, dtype)
        assert about.streamed is not None
        self.buffer = buffer
        shards = Path(about.streamed)
        if not shards.is_dir():
            raise DataError(
                f"{shards} is not seen here; shards are streamed from a folder that every host sees"
            )
        self._reader = Reader(shards, Manifest.read(shards))
        if self._reader.manifest.sha256 != about.sha256:
            raise DataError(f"{shards / MANIFEST} changed since the run began")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return (len(self._reader.manifest.features),)

    def _split(self, part: str) -> StreamSplit:
        return StreamSplit(self._reader, part, self.buffer, self._dtype)


def store(source: Path, folder: Path) -> Path:
    """Write a stored folder that refers to the shards; they are checked before."""
    about = about_shards(open_shards(source).manifest, streamed=source)
    folder.mkdir(parents=True)
    (folder / "data.json").write_text(json.dumps(asdict(about), indent=2) + "\n")
    return folder
