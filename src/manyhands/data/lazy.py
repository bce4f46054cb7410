"""Data whose examples are read when they are due: DataLoaders, Datasets and streams.

Each worker reads the examples of its own share, in its own process. What an example draws from
torch's, NumPy's or Python's generator depends on (seed, epoch, index) only: any number of workers
reads the same examples, and so does a resumed run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.data import batch_tree, user_arrays
from manyhands.data.seeding import reseed, seed_of, seeded
from manyhands.errors import ConfigError, DataError

if TYPE_CHECKING:
    from manyhands.data.batch_tree import Tree

# What a DataLoader's worker processes get, as the user gave it.
_LOADER = ("num_workers", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")
# Classes whose objects are read when they are due, by their names: nothing is imported.
_DICTS = ("datasets.dataset_dict.DatasetDict", "datasets.dataset_dict.IterableDatasetDict")
_LAZY = (
    "torch.utils.data.dataloader.DataLoader",
    "torch.utils.data.dataset.IterableDataset",
    "datasets.arrow_dataset.Dataset",
    "datasets.iterable_dataset.IterableDataset",
    *_DICTS,
)
_RULE = "(x, y), x alone or a dictionary"
_END: Any = object()


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A data set that is read example by example, as a worker receives it.

    Attributes:
        source: A map-style Dataset, an iterable, or a function that returns one.
        length: The number of examples of an epoch.
        indexed: Whether any example can be read by its index; otherwise they come in turn.
        collate: What makes a batch of a list of examples; None: stack them.
        sampler: What decides the order: a sampler, or a batch sampler (`batched`). None: the seed,
            for an indexed source.
        batch_size: The loader's, if there is a loader.
        drop_last: Leave out an epoch's last batch if it is smaller.
        loader: What the loader's own worker processes get.
        where: What errors call it.
    """

    source: Any
    length: int
    where: str
    indexed: bool = True
    collate: Callable[[list[Any]], Any] | None = None
    sampler: Any = None
    batched: bool = False
    batch_size: int | None = None
    drop_last: bool = False
    loader: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ordered(self) -> bool:
        """Whether the source decides the order, not the seed."""
        return self.sampler is not None or not self.indexed or self.drop_last

    @cached_property
    def sample(self) -> tuple[Tree, Tree]:
        """A batch of the first example: features and targets, as they come."""
        with seeded(0, 0, 0):
            first = self.source[0] if self.indexed else next(iter(self.open()), _END)
            if first is _END:
                raise DataError(f"{self.where} is empty; expected an example at least")
            return self.batch([first], "item 0")

    def open(self) -> Iterable[Any]:
        """Return the examples of one epoch from the first on."""
        return self.source() if _is_function(self.source) else self.source  # type: ignore[no-any-return]

    def read(self, indices: Sequence[int], seed: int, epoch: int) -> tuple[Tree, Tree]:
        """Return a batch of the examples at these indices."""
        items = []
        with seeded(seed, epoch):
            for index in indices:
                reseed(seed, epoch, index)
                items.append(self.source[index])
            return self.batch(items, f"the batch of items {list(indices)[:3]} …")

    def batch(self, items: list[Any], what: str) -> tuple[Tree, Tree]:
        """Return features and targets of some examples; they are one object without targets."""
        if self.collate is None:
            x, y = user_arrays.stack(items, f"{self.where}: {what}")
        else:
            x, y = split_batch(self.collate(items), f"{self.where}: {what}")
        x = _tensors(x, len(items), f"{self.where}: {what}: x")
        return x, x if y is None else _tensors(y, len(items), f"{self.where}: {what}: y")

    def fingerprint(self) -> str:
        """Return a hash of what is known without reading: its length and form."""
        x, y = self.sample
        known = [type(self.source).__name__, getattr(self.source, "_fingerprint", ""), self.length]
        leaves = [f"{leaf.dtype} {tuple(leaf.shape[1:])}" for leaf in batch_tree.leaves(x)]
        known += [leaves, batch_tree.form(x), batch_tree.form(None if y is x else y)]
        return hashlib.sha256(str(known).encode()).hexdigest()


class Stream:
    """Reads a source that has no index, forwards; examples between those wanted are left out."""

    def __init__(self, examples: Examples, seed: int) -> None:
        self.examples, self.seed = examples, seed
        self._epoch = -1  # none
        self._next = 0
        self._items: Iterator[Any] = iter(())
        self._kept: dict[int, Any] = {}  # read for a trial, and due again

    def read(self, positions: Sequence[int], epoch: int, *, keep: bool) -> tuple[Tree, Tree]:
        """Return a batch of the examples at these positions, which rise; `keep` reads ahead."""
        with seeded(self.seed, epoch):
            passed = (p < self._next and p not in self._kept for p in positions)
            if epoch != self._epoch or any(passed):
                self._begin(epoch)
            items = [self._item(position, keep=keep) for position in positions]
            return self.examples.batch(items, "a batch")

    def _begin(self, epoch: int) -> None:
        source = self.examples.open()
        if hasattr(source, "set_epoch"):
            source.set_epoch(max(0, epoch - 1))  # an evaluation reads epoch 0
        self._epoch, self._next, self._kept = epoch, 0, {}
        self._items = iter(source)

    def _item(self, position: int, *, keep: bool) -> Any:
        if position in self._kept:
            return self._kept[position] if keep else self._kept.pop(position)
        while self._next <= position:
            reseed(self.seed, self._epoch, self._next)
            item = next(self._items, _END)
            if item is _END:
                raise DataError(
                    f"{self.examples.where} ended after {self._next} examples in epoch "
                    f"{self._epoch}, but its length was given as {self.examples.length}; correct "
                    "the length, or the source"
                )
            self._next += 1
        if keep:
            self._kept[position] = item
        return item


def split_batch(batch: Any, where: str) -> tuple[Any, Any | None]:
    """Split what `collate_fn` made into features and targets, if there are any."""
    if isinstance(batch, list | tuple):
        parts = tuple(_as_parts(part) for part in batch)
        if len(parts) == 2:
            return parts[0], parts[1]
        return (parts[0] if len(parts) == 1 else parts), None
    if isinstance(batch, Mapping) or hasattr(batch, "shape"):
        return _as_parts(batch), None
    raise DataError(f"{where}: collate_fn gave a {type(batch).__name__}; expected {_RULE}")


def _as_parts(value: Any) -> Any:
    """Return a tree: lists of parts, as PyTorch's collate makes them, become tuples."""
    if isinstance(value, Mapping):
        return {name: _as_parts(part) for name, part in value.items()}
    return tuple(map(_as_parts, value)) if isinstance(value, list | tuple) else value


def _tensors(tree: Tree, rows: int, where: str) -> Tree:
    """Return the tree with tensors; refuse what is no number, or not one row per example."""
    import torch

    made = []
    for name, leaf in zip(batch_tree.names(where, tree), batch_tree.leaves(tree), strict=True):
        plain = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "uifb"
        if not plain and not isinstance(leaf, torch.Tensor):
            kind = leaf.dtype if isinstance(leaf, np.ndarray) else type(leaf).__name__
            raise DataError(
                f"{name} is {kind}; expected numbers: leave texts and names out, or turn them into "
                "numbers in the Dataset or in collate_fn"
            )
        tensor = torch.from_numpy(leaf) if plain else leaf
        if tensor.dim() == 0 or len(tensor) != rows:
            raise DataError(
                f"{name} has shape {tuple(tensor.shape)} for {rows} examples; expected a row for "
                "each example"
            )
        made.append(tensor.detach())
    return batch_tree.unflatten(batch_tree.form(tree), made)


def is_lazy(source: Any) -> bool:
    """Return whether a source is read when it is due, without being asked to be."""
    return _is_function(source) or isinstance(source, Iterator) or _has_base(source, *_LAZY)


def is_dict_of_parts(source: Any) -> bool:
    """Return whether a source is a dictionary of data sets, of Hugging Face."""
    return _has_base(source, *_DICTS)


def from_source(
    source: Any,
    where: str,
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    length: int | None = None,
) -> Examples:
    """Return what a user passed as examples that are read when they are due.

    Raises:
        ConfigError: If it cannot be read by several workers, or its length is not known.
    """
    if hasattr(source, "batch_sampler") and hasattr(source, "collate_fn"):
        if collate_fn is not None:
            raise ConfigError(
                f"{where} is a DataLoader, and collate_fn is given as well; leave it out"
            )
        return _from_loader(source, where, length)
    if isinstance(source, Iterator):
        raise ConfigError(
            f"{where} is a {type(source).__name__}, which can be read once and not be sent to "
            "workers; give the function that makes it (without calling it), or an IterableDataset"
        )
    if _is_stream(source):
        return _from_stream(source, where, collate_fn, length)
    if length is not None:
        raise ConfigError(f"{where}: examples is {length}, but {where} has a length; leave it out")
    return Examples(source=source, length=_length(source, where), where=where, collate=collate_fn)


def check_own_length(source: Any, where: str) -> None:
    """Refuse a set to evaluate on that has no length: `examples` is the training set's."""
    whole = getattr(source, "dataset", source)
    if _is_stream(whole) and not hasattr(whole, "__len__"):
        raise ConfigError(
            f"{where} is a {type(whole).__name__} without a length; expected one with __len__, a "
            "Dataset, or arrays"
        )


def _from_loader(loader: Any, where: str, length: int | None) -> Examples:
    from torch.utils.data import RandomSampler, default_collate

    sampler, batches = loader.sampler, loader.batch_sampler
    own = loader.collate_fn if loader.collate_fn is not default_collate else None
    options = {name: getattr(loader, name, None) for name in _LOADER}
    options = {name: value for name, value in options.items() if value}
    if loader.batch_size is None and batches is None:
        raise ConfigError(
            f"{where} is a DataLoader with batch_size=None, whose dataset makes the batches; give "
            "a loader of examples, whose batches can be divided"
        )
    if _is_stream(loader.dataset):
        if options:
            option = next(iter(options))
            raise ConfigError(
                f"{where} is a DataLoader of a stream with {option}={options[option]}; each worker "
                f"reads the stream itself: leave {option} out"
            )
        made = _from_stream(loader.dataset, where, own, length)
        return _replaced(made, batch_size=loader.batch_size, drop_last=loader.drop_last)
    if hasattr(sampler, "num_replicas"):
        raise ConfigError(
            f"{where}: the loader's sampler is a {type(sampler).__name__}, which divides the data "
            "itself; expected the loader of the whole data, e.g. with shuffle=True"
        )
    made = from_source(loader.dataset, where, collate_fn=own, length=length)
    made = _replaced(made, loader=options, batch_size=loader.batch_size)
    if loader.batch_size is None:  # a batch sampler of the user's
        return _replaced(made, sampler=batches, batched=True)
    plain = type(sampler) is RandomSampler and not sampler.replacement
    plain = plain and len(sampler) == made.length
    order = None if plain else sampler
    return _replaced(made, sampler=order, drop_last=loader.drop_last)


def _replaced(examples: Examples, **changes: Any) -> Examples:
    from dataclasses import replace

    return replace(examples, **changes)


def _from_stream(
    source: Any, where: str, collate_fn: Callable[..., Any] | None, length: int | None
) -> Examples:
    if length is None:
        length = _length(source, where)
    return Examples(source=source, length=length, where=where, indexed=False, collate=collate_fn)


def _length(source: Any, where: str) -> int:
    try:
        length = len(source)
    except TypeError:
        raise ConfigError(
            f"{where} is a {type(source).__name__} without a length; give examples, the number of "
            f"examples of one epoch: Data(train=…, examples=10_000)"
        ) from None
    if length < 1:
        raise DataError(f"{where} is empty; expected an example at least")
    return length


def _is_function(source: Any) -> bool:
    """Return whether it is to be called for an iterator: a function, partial or callable object."""
    import inspect

    if inspect.isfunction(source) or inspect.ismethod(source):
        return True
    readable = any(hasattr(source, name) for name in ("__iter__", "__getitem__", "__len__"))
    return callable(source) and not isinstance(source, type) and not readable


def _is_stream(source: Any) -> bool:
    """Return whether examples have no index; a torch IterableDataset only seems to have them."""
    known = _has_base(source, "torch.utils.data.dataset.IterableDataset")
    return known or _is_function(source) or not hasattr(source, "__getitem__")


def _has_base(source: Any, *names: str) -> bool:
    """Return whether a class of that name is among the bases, without importing it."""
    bases = {f"{base.__module__}.{base.__name__}" for base in type(source).__mro__}
    return not bases.isdisjoint(names)


def epoch_batches(examples: Examples, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the indices of each update of an epoch, as the loader's sampler draws them."""
    if examples.batched:
        drawn = [_indices(examples, batch) for batch in _drawn(examples.sampler, seed, epoch)]
        return drawn or [_indices(examples, [])]
    order = np.arange(examples.length)
    if examples.sampler is not None:
        order = _indices(examples, list(_drawn(examples.sampler, seed, epoch)))
    elif examples.indexed:
        from manyhands.data.shuffle import permutation

        order = permutation(examples.length, seed, epoch, "epoch")
    batches = np.split(order, range(batch_size, len(order), batch_size))
    return batches[:-1] if examples.drop_last and len(batches[-1]) < batch_size else batches


def _indices(examples: Examples, drawn: Any) -> np.ndarray:
    """Return what a sampler drew as indices; refuse what is none."""
    found = np.asarray(drawn)
    if not len(found) or found.dtype.kind not in "iu":
        what = "nothing" if not len(found) else f"{found.flat[0]!r}"
        raise DataError(
            f"{examples.where}: the sampler, a {type(examples.sampler).__name__}, gave {what}; "
            f"expected indices from 0 to {examples.length - 1}"
        )
    return found.astype(np.int64)


def _drawn(sampler: Iterable[Any], seed: int, epoch: int) -> Iterator[Any]:
    """Yield what a sampler draws in an epoch: the same in every process."""
    parts: list[Any] = [sampler, getattr(sampler, "sampler", None)]
    with seeded(seed, epoch):
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch - 1)
            if generator := getattr(part, "generator", None):
                generator.manual_seed(seed_of(seed, epoch) % 2**63)
        yield from list(sampler)
