"""Batches of data that is read when it is due, ready for the model."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.data import batch_tree
from manyhands.data.example_batches import Column, Split
from manyhands.data.lazy import Examples, Stream
from manyhands.data.seeding import seed_of
from manyhands.data.stored import PARTS, About, Stored

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from manyhands.data.batch_tree import Tree
    from manyhands.data.worker_batch_plan import Share


class LazySplit(Split):
    """Examples that are read when a batch of them is due; same interface as `Split`.

    Attributes:
        x: No examples, in the form of the features.
        y: Likewise of the targets.
        rows: Which examples belong to the split, where not all do; (count,).
    """

    def __init__(
        self,
        examples: Examples,
        about: About,
        *,
        seed: int,
        dtype: str,
        rows: np.ndarray | None = None,
        device: torch.device | None = None,
    ) -> None:
        import torch

        self.examples, self.seed, self.classes = examples, seed, about.classes
        self.device, self.resident = device or torch.device("cpu"), False
        self.dtype = getattr(torch, dtype)
        self.indices = rows
        self.rows = None
        x, y = examples.sample
        self._inputs = self._columns(x, normalise=about.normalise, bytes_=True)
        self._outputs = [] if y is x else self._columns(y)
        self.x, self.y = batch_tree.take_examples(*self._ready(x, y), slice(0))
        self._stream = None if examples.indexed else Stream(examples, seed)

    def _columns(self, tree: Tree, **about: Any) -> list[Column]:
        return [Column(leaf, self.dtype, self.device, **about) for leaf in batch_tree.leaves(tree)]

    def __len__(self) -> int:
        return self.examples.length if self.indices is None else len(self.indices)

    @property
    def width(self) -> int:
        """One: how many numbers an example has may depend on the example."""
        return 1

    @property
    def labels(self) -> None:
        """None: they are not all in memory."""
        return

    @property
    def labelled(self) -> bool:
        """Whether every example has one class as its target."""
        y = self.y
        single = y is not self.x and not isinstance(y, tuple | dict) and y.dim() == 1
        return bool(single and not y.is_floating_point())

    def batch(self, indices: np.ndarray | Tensor) -> tuple[Tree, Tree]:
        """Return the examples at `indices`, ready for the model; a stream's are due again."""
        return self.read(indices, 1, keep=True)

    def read(
        self, indices: np.ndarray | Tensor, epoch: int, *, keep: bool = False
    ) -> tuple[Tree, Tree]:
        """Return the examples at `indices` in an epoch, ready for the model."""
        rows = np.asarray(indices)
        if not len(rows):
            return self._none()
        rows = rows if self.indices is None else self.indices[rows]
        if self._stream:
            return self._ready(*self._stream.read(rows.tolist(), epoch, keep=keep))
        return self._ready(*self.examples.read(rows.tolist(), self.seed, epoch))

    def _none(self) -> tuple[Tree, Tree]:
        x = batch_tree.map_tensors(lambda leaf: leaf.clone(), self.x)
        return x, x if self.y is self.x else self.y

    def slices(self, start: int, stop: int, batch: int) -> Iterator[tuple[Tree, Tree]]:
        """Yield the examples start … stop-1 in their order, at most `batch` at a time."""
        size = min(batch, self.examples.batch_size or batch)
        for begin in range(start, stop, size):
            yield self.read(np.arange(begin, min(begin + size, stop)), 0)

    def ahead(self, shares: Iterable[Share], epoch: int) -> Ahead:
        """Return the shares of an epoch, with their examples."""
        return Ahead(self, shares, epoch)

    def _ready(self, x: Tree, y: Tree) -> tuple[Tree, Tree]:
        """Return features and targets in the types that the model takes."""
        features = _converted(x, self._inputs)
        if y is x:
            return features, features
        targets = _converted(y, self._outputs)
        # Classes are whole numbers, as in stored data.
        return features, batch_tree.map_tensors(
            lambda leaf: leaf if leaf.is_floating_point() else leaf.long(), targets
        )


def _converted(tree: Tree, columns: list[Column]) -> Tree:
    leaves = batch_tree.leaves(tree)
    ready = [column.ready(leaf) for column, leaf in zip(columns, leaves, strict=True)]
    return batch_tree.unflatten(batch_tree.form(tree), ready)


class Ahead:
    """Iterates over the shares of an epoch; the loader's own processes read ahead."""

    def __init__(self, split: LazySplit, shares: Iterable[Share], epoch: int) -> None:
        self._split, self._shares, self._epoch = split, iter(shares), epoch
        self._share: Share | None = None
        self._read: tuple[Tree, Tree | None] | None = None  # by the loader's own processes
        self._asked: deque[Share] = deque()
        self._processes = bool(split.examples.loader.get("num_workers"))

    def __iter__(self) -> Iterator[Share]:
        if self._processes:
            yield from self._from_processes()
            return
        for share in self._shares:
            self._share = share
            yield share

    def _from_processes(self) -> Iterator[Share]:
        import torch
        from torch.utils.data import DataLoader

        split = self._split
        own = torch.Generator()  # the loader draws a seed: not from the model's generator
        loader: DataLoader[Any] = DataLoader(
            _Batches(split.examples, split.indices, split.seed, self._epoch),  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._indices(),
            collate_fn=_unchanged,
            generator=own.manual_seed(seed_of(split.seed, self._epoch) % 2**63),
            **split.examples.loader,
        )
        batches = iter(loader)
        while True:
            try:
                self._read = next(batches)
            except StopIteration:
                return
            except Exception as error:  # its text is a whole traceback, the error in the last line
                last = str(error).strip().splitlines()[-1]
                raise RuntimeError(f"{last}, in a process of the DataLoader\n{error}") from error
            self._share = self._asked.popleft()
            yield self._share

    def _indices(self) -> Iterator[np.ndarray]:
        for share in self._shares:
            self._asked.append(share)
            yield share.indices

    def batch(self) -> tuple[Tree, Tree]:
        """Return the examples of the latest share, ready for the model."""
        assert self._share is not None
        if self._read is not None:
            x, y = self._read
            return self._split._ready(x, x if y is None else y)
        return self._split.read(self._share.indices, self._epoch)


class _Batches:
    """The batches that the loader's processes read, by their indices."""

    def __init__(self, examples: Examples, rows: np.ndarray | None, seed: int, epoch: int) -> None:
        self.examples, self.rows, self.seed, self.epoch = examples, rows, seed, epoch

    def __getitem__(self, indices: np.ndarray) -> tuple[Tree, Tree | None] | None:
        if not len(indices):
            return None
        rows = indices if self.rows is None else self.rows[indices]
        x, y = self.examples.read(rows.tolist(), self.seed, self.epoch)
        return x, None if y is x else y


def _unchanged(batch: Any) -> Any:
    return batch


class LazyStored(Stored):
    """Data that is read when it is due; same interface as `Stored`."""

    def __init__(
        self, folder: Path, about: About, examples: dict[str, Examples], dtype: str, seed: int
    ) -> None:
        super().__init__(folder, about, {}, dtype)
        self.examples, self.seed = examples, seed

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example's features; of the first of them where there are several."""
        return tuple(batch_tree.leaves(self.train.x)[0].shape[1:])

    def zeros(self, count: int) -> tuple[Tree, Tree]:
        """Return a batch of zeros in the form of the first example."""
        x, y = self.train.x, self.train.y

        def some(leaf: Tensor) -> Tensor:
            return leaf.new_zeros(count, *leaf.shape[1:])

        zeros = batch_tree.map_tensors(some, x)
        return zeros, zeros if y is x else batch_tree.map_tensors(some, y)

    def original_row(self, part: str, row: int) -> int:
        """Return an example's row in the user's data."""
        return row

    def _split(self, part: str) -> LazySplit:
        return LazySplit(
            self.examples["train" if part in self._rows else part],
            self.about,
            seed=self.seed,
            dtype=self._dtype,
            rows=self._rows.get(part),
            device=self._device,
        )


def store(
    folder: str | os.PathLike[str], parts: Mapping[str, tuple[int, str]], **about: Any
) -> Path:
    """Write a stored folder without arrays, for data that is read when it is due.

    Args:
        folder: A new folder.
        parts: Length and fingerprint of the training set, and of the others there are.
        about: The other fields of `data.json`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    sizes: dict[str, Any] = {part: parts.get(part, (0, ""))[0] for part in PARTS}
    digest = hashlib.sha256(str(sorted(parts.items())).encode()).hexdigest()
    made = About(**sizes, sha256=digest, lazy=True, **about)
    (folder / "data.json").write_text(json.dumps(asdict(made), indent=2) + "\n")
    return folder
