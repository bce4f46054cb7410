"""A group whose vectors live on GPUs and travel through the host's pinned memory.

So several workers may share one GPU, which NCCL refuses, and any carrier of the host's memory will
do. Pinned memory is copied to and from the GPU without a detour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm.communicator import Communicator, Exchange


class StagedComm:
    """The group `inner`, for vectors on a GPU."""

    def __init__(self, inner: Communicator) -> None:
        self.name, self.rank, self.size = inner.name, inner.rank, inner.size
        self.meter = inner.meter
        self.sum, self.maximum, self.gather = inner.sum, inner.maximum, inner.gather
        self.begin_maximum = inner.begin_maximum
        self.barrier, self.release = inner.barrier, inner.release
        self.lost, self.abort = inner.lost, inner.abort
        self._inner = inner
        self.own = getattr(inner, "own", None)
        self._pinned: dict[tuple[object, ...], Tensor] = {}

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the group, in place; the same bits on every worker."""
        if self.size == 1:
            return
        staged = self._out(vector)
        self._inner.allreduce(staged, algorithm)
        vector.copy_(staged, non_blocking=True)

    def split(self, colour: int) -> StagedComm:
        """Return the group of the workers with the same colour."""
        return StagedComm(self._inner.split(colour))

    def broadcast(self, vector: Tensor, root: int = 0) -> None:
        """Give everyone root's `vector`, in place."""
        staged = self._out(vector)
        self._inner.broadcast(staged, root)
        vector.copy_(staged, non_blocking=True)

    def exchange(self, vector: Tensor, received: Mapping[int, Tensor]) -> Callable[[], None]:
        """Begin an exchange; until the result is called, `received` may not be touched."""
        staged = {rank: self._buffer(theirs, rank) for rank, theirs in received.items()}
        _wait(vector)  # what was received last has left the buffers
        arrive = self._inner.exchange(self._out(vector), staged)

        def end() -> None:
            arrive()
            for rank, theirs in received.items():
                theirs.copy_(staged[rank], non_blocking=True)

        return end

    def exchange_parts(
        self, parts: Mapping[int, Tensor], received: Mapping[int, Tensor], tag: int = 0
    ) -> Exchange:
        """Begin an exchange of parts, which are in the host's memory already."""
        return self._inner.exchange_parts(parts, received, tag)

    def progress(self) -> None:
        """Make progress on exchanges that have begun."""
        self._inner.progress()

    def _out(self, vector: Tensor) -> Tensor:
        """Return a copy in reused pinned memory; the GPU's stream keeps copies in order."""
        staged = self._buffer(vector, "out")
        staged.copy_(vector, non_blocking=True)
        _wait(vector)
        return staged

    def _buffer(self, like: Tensor, use: object) -> Tensor:
        key = (use, like.numel(), like.dtype)
        if key not in self._pinned:
            self._pinned[key] = torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
        return self._pinned[key]


def _wait(vector: Tensor) -> None:
    """Wait for the copies to and from the GPU that `vector` is on."""
    if vector.is_cuda:
        torch.cuda.current_stream(vector.device).synchronize()
