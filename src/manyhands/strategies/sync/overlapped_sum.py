"""The sum of gradients that begins while the backward pass still computes.

```
each worker, when backward has the last gradient of bucket b, and b − 1 has begun:
    begin to sum b over the workers
after backward:
    begin the other buckets; wait for all, in order
```

Buckets are consecutive parameters, the last of the model first: backward reaches them in about this
order. All workers begin them in the same order.

```
P = 2:  send the bucket to the other worker, and add the other's
P > 2:  worker k sends part j to each worker j, and adds up part k; then it sends part k to all
```

A worker sends 2 (P − 1) / P times the vector's bytes, as in a ring. Two numbers have one sum, so
that with two workers the bits are those of an all-reduce after backward. MPI moves messages only
when it is called, so every gradient that is ready calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm import Communicator
    from manyhands.comm.communicator import Exchange
    from manyhands.strategies.strategy import WorkerView

# A bucket takes 8 ms at 1 Gbit/s, about as long as backward through a layer: less would cost more
# messages, and more would leave more for the time after backward.
BUCKET_BYTES = 1 << 20
_MOST = 4000  # buckets: each has two tags, and MPI has 32,767 for certain


class Group(NamedTuple):
    """Parameters that wait for each other.

    Attributes:
        parameters: Their numbers.
        spans: Their buckets, as spans of the vector.
    """

    parameters: range
    spans: list[slice]


def plan_buckets(lengths: Sequence[int], least: int) -> list[Group]:
    """Cut a vector of consecutive parameters into groups, the last parameters first.

    Parameters join a group until it has `least` numbers; it is then cut into as many buckets of
    about the same length as have `least` numbers. The first parameters may be fewer.
    """
    groups = []
    start = stop = sum(lengths)
    last = len(lengths)
    for number in reversed(range(len(lengths))):
        start -= lengths[number]
        if stop - start < least and number:
            continue
        if stop > start:
            count = max(1, (stop - start) // least)
            edges = [start + (stop - start) * i // count for i in range(count + 1)]
            spans = [slice(a, b) for a, b in pairwise(edges)][::-1]
            groups.append(Group(range(number, last), spans))
            stop, last = start, number
    return groups


class OverlappedSum:
    """The sum and the update of one worker, with a sum that begins during backward.

    Collective: all workers make it, and step together.
    """

    def __init__(self, worker: WorkerView) -> None:
        self._comm, named = worker.comm, worker.replica.named
        self._names = [name for name, _ in named]
        vector, dim = worker.watch_backward(self._ready), worker.replica.dim
        least = max(BUCKET_BYTES // vector.itemsize, dim // _MOST, 1)
        groups = plan_buckets([p.numel() for _, p in named], least)
        self._groups = [group.parameters for group in groups]
        self._group_of = {
            number: g for g, group in enumerate(groups) for number in group.parameters
        }
        spans = [group.spans for group in groups]
        if len(vector) > dim:  # what your own loop appends is known after backward only
            spans.append([slice(dim, len(vector))])
        tags = range(1, 2 * sum(map(len, spans)) + 1, 2)
        made = iter(zip(chain.from_iterable(spans), tags, strict=True))
        self._buckets = [
            [_Bucket(self._comm, vector[span], tag) for span, tag in [next(made) for _ in some]]
            for some in spans
        ]  # by group
        self._begin_step()

    def _begin_step(self) -> None:
        self._missing = [set(numbers) for numbers in self._groups]
        self._begun = 0  # groups
        self._flying: list[_Bucket] = []
        self._advanced = 0  # of these

    def _ready(self, number: int) -> None:
        """Begin what has all its gradients, and let MPI work."""
        group = self._group_of.get(number)
        if group is None:  # it has no numbers
            return
        if group < self._begun:
            raise ConfigError(
                f"{self._names[number]} got another gradient in the same backward pass, when the "
                "first was under way to the other workers; expected overlap=False where a model "
                "runs backward within backward, as reentrant checkpointing does"
            )
        self._missing[group].discard(number)
        while self._begun < len(self._missing) and not self._missing[self._begun]:
            self._begin_next()
        self._advance()

    def _begin_next(self) -> None:
        for bucket in self._buckets[self._begun]:
            bucket.begin()
            self._flying.append(bucket)
        self._begun += 1

    def _advance(self) -> None:
        """Go on with what has arrived, without waiting."""
        while self._advanced < len(self._flying) and self._flying[self._advanced].arrived():
            self._flying[self._advanced].advance()
            self._advanced += 1
        if self._flying:
            self._comm.progress()

    def step(self, worker: WorkerView, gradient: Tensor) -> None:
        """Sum what is not summed yet, and let the optimizer step along the gradient. Collective."""
        with worker.exchanging():
            while self._begun < len(self._buckets):
                self._begin_next()
                self._advance()
            for bucket in self._flying[self._advanced :]:
                bucket.advance()
            for bucket in self._flying:
                bucket.end()
        self._begin_step()
        worker.update(gradient)

    def state(self, worker: WorkerView) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return nothing: between two steps nothing is under way."""
        return {}, {}

    def restore(
        self, worker: WorkerView, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Do nothing."""


class _Bucket:
    """A span of the vector that is summed over the workers, in place.

    Args:
        comm: The workers, two at least.
        vector: The span.
        tag: Its messages have this tag and the next one, so that halves of several buckets may
            begin in another order on every worker.
    """

    def __init__(self, comm: Communicator, vector: Tensor, tag: int) -> None:
        self._comm, self._tag = comm, tag
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        whole = comm.size == 2
        parts = [vector] * 2 if whole else vector.tensor_split(comm.size)
        self._own = parts[comm.rank]
        self._parts = {rank: parts[rank] for rank in others if len(parts[rank])}
        full = len(self._own) > 0
        self._received = {rank: self._own.new_empty(len(self._own)) for rank in others if full}
        self._copies = {rank: self._own for rank in others if full and not whole}
        self._sums = {} if whole else self._parts
        self._exchange: Exchange | None = None

    def begin(self) -> None:
        """Begin the first half: send the others their parts, and receive theirs of the own one."""
        self._exchange = self._comm.exchange_parts(self._parts, self._received, self._tag)

    def arrived(self) -> bool:
        """Return whether the half that is under way has arrived."""
        assert self._exchange is not None
        return self._exchange.arrived()

    def advance(self) -> None:
        """End the first half, and begin the second, in which sums travel, where there is one."""
        assert self._exchange is not None
        self._exchange()
        self._exchange = None
        for theirs in self._received.values():  # by rank: the same bits in every run
            self._own += theirs
        if self._copies or self._sums:
            self._exchange = self._comm.exchange_parts(self._copies, self._sums, self._tag + 1)

    def end(self) -> None:
        """Wait for the second half."""
        if self._exchange is not None:
            self._exchange()
            self._exchange = None
