"""Each worker's share of every batch of a user's own loader.

All workers walk through the same batches, and each takes its own near-equal part of each: the
update is that of the whole batch, whatever the number of workers.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

    from manyhands.comm import Communicator

_SAME = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers",
)  # fmt: skip


class BatchWeight(NamedTuple):
    """The weight of one worker's share of a batch."""

    weight: float
    total: float
    examples: float

    def alone(self) -> Self:
        """Return the same share with weight 1: its gradient is that of its own mean loss."""
        return self._replace(weight=1.0)


class ShardedLoader:
    """A loader that yields this worker's share of each batch.

    Where a batch has fewer examples than there are workers, those left over get its first example
    once more, and it counts for nothing; in an evaluation they leave the batch out instead.

    Args:
        loader: A DataLoader, of which only the own part is loaded, or any iterable of batches,
            each a tensor or array, or tuples, lists and dictionaries of them.
        group: The workers.
        evaluation: Whether nobody takes a step on these batches.
        tell: Is told how much a batch counts, just before it is handed out.

    Raises:
        ConfigError: If the loader divides the data itself.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        group: Communicator,
        *,
        evaluation: bool,
        tell: Callable[[BatchWeight], None],
    ) -> None:
        self.loader = loader
        self.group = group
        self.evaluation = evaluation
        self.tell = tell
        self._worths: deque[BatchWeight] = deque()
        self._cut: DataLoader[Any] | None = None
        if isinstance(loader, DataLoader):
            if isinstance(loader.sampler, DistributedSampler):
                raise ConfigError(
                    "the loader's sampler is a DistributedSampler, which divides the data itself; "
                    "expected the loader of the whole data, e.g. with shuffle=True"
                )
            stream = isinstance(loader.dataset, IterableDataset)
            if loader.batch_sampler is not None and not stream:
                same = {name: getattr(loader, name) for name in _SAME}
                self._cut = DataLoader(
                    loader.dataset, batch_sampler=_ShareSampler(loader.batch_sampler, self), **same
                )

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        self._worths.clear()
        for batch in self._cut if self._cut is not None else self._sliced():
            worth = self._worths.popleft()
            if not self.evaluation:
                self.tell(worth)
            yield batch

    def part(self, total: int) -> tuple[int, int] | None:
        """Return the bounds of this worker's share of a batch; None to leave it out."""
        rank, size = self.group.rank, self.group.size
        start, stop = rank * total // size, (rank + 1) * total // size
        examples = stop - start
        if not examples:
            if self.evaluation or not total:
                return None
            start, stop = 0, 1
        self._worths.append(BatchWeight(examples / total, total, examples))
        return start, stop

    def together(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches that worker 0 would draw, on every worker. Collective.

        Worker 0's random numbers decide; the others keep their own for everything else.
        """
        common, many = _CommonGenerator(self.group), None
        self._share_generators()
        first = True
        while True:
            with common.drawing():
                many = iter(batches) if many is None else many  # which may draw as well
                batch = next(many, None)
            if first:
                self._compare(batch)
                first = False
            if batch is None:
                return
            yield batch

    def _sliced(self) -> Iterator[Any]:
        for batch in self.together(self.loader):
            total = count_examples(batch)
            part = self.part(total)
            if part is not None:
                yield _slice(batch, slice(*part), total)

    def _share_generators(self) -> None:
        """Set the loader's own generators to worker 0's state."""
        owners = [self.loader, getattr(self.loader, "sampler", None)]
        generators = [getattr(owner, "generator", None) for owner in owners]
        for generator in dict.fromkeys(generators):
            if isinstance(generator, torch.Generator):
                state = generator.get_state()
                self.group.broadcast(state)
                generator.set_state(state)

    def _compare(self, batch: Any) -> None:
        """Refuse loaders whose first batch differs between workers."""
        count = len(self) if hasattr(self.loader, "__len__") else None
        about = _draw_hash(getattr(self.loader, "dataset", None))
        digests = self.group.gather([count, about, _digest(batch)])
        different = [rank for rank, other in enumerate(digests) if other != digests[0]]
        if different:
            raise ConfigError(
                f"the loader of worker {different[0]} gives other batches than worker 0's; "
                "expected the same data in the same order everywhere: seed what draws it"
            )


class _ShareSampler:
    """Yields the indices of this worker's share of each batch."""

    def __init__(self, batches: Iterable[list[Any]], shared: ShardedLoader) -> None:
        self.batches = batches
        self.shared = shared

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[Any]]:
        for indices in self.shared.together(self.batches):
            part = self.shared.part(len(indices))
            if part is not None:
                yield list(indices)[slice(*part)]


class _CommonGenerator:
    """A stream of torch's random numbers that all workers share, from worker 0's state on."""

    def __init__(self, group: Communicator) -> None:
        self.group = group
        self.state: Tensor | None = None

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw from the common stream inside; worker 0 continues with it afterwards."""
        own, first = torch.get_rng_state(), self.state is None
        if self.state is None:
            self.state = own.clone()
            self.group.broadcast(self.state)
        torch.set_rng_state(self.state)
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            if not (first and self.group.rank == 0):
                torch.set_rng_state(own)


def _draw_hash(dataset: Any) -> str | None:
    """Return a hash that differs if two workers drew different data; None if nothing tells.

    An example of any other dataset may be another each time that it is asked for.
    """
    if isinstance(dataset, Subset):
        return f"{_digest(np.asarray(dataset.indices))} of {_draw_hash(dataset.dataset)}"
    if isinstance(dataset, TensorDataset):
        return _digest([part for tensor in dataset.tensors for part in (tensor[:1], tensor[-1:])])
    return None


def _leaves(batch: Any) -> Iterator[Tensor | np.ndarray]:
    """Yield the tensors and arrays of a batch, in order."""
    if isinstance(batch, (Tensor, np.ndarray)):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _leaves(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _leaves(value)


def count_examples(batch: Any) -> int:
    """Return the number of examples of a batch: the length of its first tensor."""
    first = next((leaf for leaf in _leaves(batch) if leaf.ndim), None)
    if first is None:
        raise ConfigError(
            f"a batch is a {type(batch).__name__} without tensors; expected a tensor, or a tuple, "
            "list or dictionary of tensors"
        )
    return len(first)


def _slice(batch: Any, part: slice, total: int) -> Any:
    """Return one share of everything in a batch that has one entry per example."""
    if isinstance(batch, (Tensor, np.ndarray)):
        return batch[part] if batch.ndim and len(batch) == total else batch
    if isinstance(batch, Mapping):
        return {key: _slice(value, part, total) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        if next(_leaves(batch), None) is None:  # names, paths …
            return batch[part] if len(batch) == total else batch
        parts = [_slice(value, part, total) for value in batch]
        named = hasattr(batch, "_fields")
        return type(batch)(*parts) if named else type(batch)(parts)
    return batch


def _digest(batch: Any) -> str:
    """Return a hash of the tensors of a batch, or of its indices."""
    hashed = hashlib.blake2b(digest_size=8)
    leaves = list(_leaves(batch))
    for leaf in leaves:
        hashed.update(np.ascontiguousarray(leaf).tobytes())
    if not leaves:
        hashed.update(repr(batch).encode())
    return hashed.hexdigest()
