"""A group of processes that share one host's memory: pipes to rank 0, shared tensors.

The pipes carry what a run needs before and after training; while they train the workers meet in
shared tensors only. Tensors travel as handles (`torch.multiprocessing`), which leave no name behind
in the file system; for those of a GPU see `leftovers`.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.multiprocessing  # teaches pipes to carry tensors

from manyhands.comm.communicator import Ready
from manyhands.comm.meter import Meter
from manyhands.launch.resources import check_shared_memory

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch import Tensor


class MemoryGroup:
    """Workers that share one host's memory: a `Communicator` without all-reduces.

    Args:
        rank: This worker, from 0.
        ends: Rank 0's: its pipe to each other worker, by rank; another's: its pipe to rank 0.
        size: How many workers there are.
        lock: A file that exists, to lock; its content does not matter.
    """

    def __init__(self, rank: int, ends: list[Connection], size: int, lock: Path) -> None:
        self.name = "auto"  # no other carrier could be chosen
        self.rank = rank
        self.size = size
        self.meter = Meter()
        self._ends = ends
        self._lock = lock.open("rb")

    def share(self, tensor: Tensor) -> Tensor:
        """Return a tensor in shared memory with rank 0's values. Collective.

        On a GPU rank 0 must live until the others have let it go.
        """
        shared: Tensor
        if self.rank == 0:
            if not tensor.is_cuda:
                what = f"a tensor of {tensor.numel():,} numbers that all workers share"
                check_shared_memory(tensor.nbytes, what)
            shared = tensor.detach().clone().share_memory_()  # type: ignore[no-untyped-call]
            for end in self._ends:
                end.send(shared)
        else:
            shared = self._ends[0].recv()
        self.barrier()  # rank 0 keeps the handle until all have it
        return shared

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the group's only lock; a process that dies releases it."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def broadcast(self, vector: Tensor, root: int = 0) -> None:
        """Give everyone root's `vector`, in place."""
        array = vector.cpu().numpy()
        mine = array.tobytes() if self.rank == root else b""
        array[...] = np.frombuffer(self._exchange(mine)[root], array.dtype).reshape(array.shape)
        if vector.is_cuda:
            vector.copy_(torch.from_numpy(array))

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a few numbers over the group, off the meter."""
        result: np.ndarray = self._gather_arrays(values).sum(axis=0)
        return result

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum over the group, off the meter."""
        result: np.ndarray = self._gather_arrays(values).max(axis=0)
        return result

    def begin_maximum(self, values: np.ndarray) -> Ready:
        """Return the maximum at once: this group can do nothing meanwhile."""
        return Ready(self.maximum(values))

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's `value` (anything JSON can hold) on all of them, by rank."""
        return [json.loads(other) for other in self._exchange(json.dumps(value).encode())]

    def barrier(self) -> None:
        """Wait for everyone."""
        self._exchange(b"")

    def _gather_arrays(self, values: np.ndarray) -> np.ndarray:
        others = self._exchange(values.tobytes())
        return np.stack([np.frombuffer(o, values.dtype).reshape(values.shape) for o in others])

    def _exchange(self, mine: bytes) -> list[bytes]:
        """Return all workers' messages, by rank: rank 0 collects and distributes."""
        if self.rank:
            self._ends[0].send_bytes(mine)
            return [self._ends[0].recv_bytes() for _ in range(self.size)]
        everything = [mine, *(end.recv_bytes() for end in self._ends)]
        for end in self._ends:
            for one in everything:
                end.send_bytes(one)
        return everything
