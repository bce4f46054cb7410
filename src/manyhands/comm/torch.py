"""The communicator over torch.distributed: gloo, or MPI through `manyhands.torch_mpi`."""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import manyhands.torch_mpi  # noqa: F401 — the backend mpi4py, and a store without a port
from manyhands.comm.meter import Meter
from manyhands.errors import ConfigError


def meet(backend: str) -> TorchCommunicator:
    """Return the group of all processes over `backend`, made at the first call; collective."""
    if not dist.is_initialized():
        dist.init_process_group(backend)
        atexit.register(_leave)
    return TorchCommunicator()


def _leave() -> None:
    """End the group's threads; one of gloo's that outlives the interpreter aborts the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


class TorchCommunicator:
    """A group of workers that are the processes of torch.distributed's default group."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.meter = Meter()
        self._name = f"torch:{dist.get_backend()}"

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the group, in place; the same bits on every worker."""
        if algorithm != "auto":
            raise ConfigError(f"allreduce is {algorithm!r}, but {self._name} has its own; use auto")
        begin = time.perf_counter()
        dist.all_reduce(vector)
        self._count(f"allreduce {self._name}", vector, begin)

    def broadcast(self, vector: Tensor, root: int = 0) -> None:
        """Give everyone root's `vector`, in place."""
        begin = time.perf_counter()
        dist.broadcast(vector, root)
        self._count("broadcast", vector, begin)

    def exchange(self, vector: Tensor, received: Mapping[int, Tensor]) -> Callable[[], None]:
        """Begin to send `vector` to the workers in `received` and to receive theirs into it.

        They must do the same. Returns what ends the exchange; until it is called `vector` may be
        read but not written, and `received` neither.
        """
        begin = time.perf_counter()
        works = [dist.irecv(theirs, rank) for rank, theirs in received.items()]
        works += [dist.isend(vector, rank) for rank in received]
        begun = time.perf_counter() - begin

        def end() -> None:
            begin = time.perf_counter()
            for work in works:
                if work is not None:  # what torch returns to who is not in the group
                    work.wait()
            self.meter.add(
                "exchange",
                payload=vector.nbytes,
                sent=len(received) * vector.nbytes,
                messages=len(received),
                seconds=begun + time.perf_counter() - begin,
            )

        return end

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a few numbers over the group, off the meter."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum over the group, off the meter."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's `value` (anything JSON can hold) on all of them, by rank."""
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(mine)]))
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)  # gloo wants parts of one size
        padded[: len(mine)] = mine
        everyones = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(everyones, padded)
        pairs = zip(everyones, lengths, strict=True)
        return [json.loads(part[: int(length)].numpy().tobytes()) for part, length in pairs]

    def barrier(self) -> None:
        """Wait for everyone."""
        dist.barrier()

    def _reduced(self, values: np.ndarray, op: Any) -> np.ndarray:
        total = torch.from_numpy(np.array(values))
        dist.all_reduce(total, op)
        return total.numpy()

    def _count(self, operation: str, vector: Tensor, begin: float) -> None:
        seconds = time.perf_counter() - begin
        self.meter.add(operation, payload=vector.nbytes, sent=None, messages=None, seconds=seconds)
