"""The communicator over torch.distributed: gloo, NCCL, or MPI through `manyhands.torch_mpi`."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from manyhands.comm.communicator import Exchange, Ready
from manyhands.comm.meter import Meter
from manyhands.errors import ConfigError, LaunchError
from manyhands.launch.environment import flush_output, torch_group

# What gloo and NCCL say when another process is gone.
_GONE = (
    "Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe",
    "Socket closed", "remote process exited",
)  # fmt: skip


def make_torch_group(backend: str) -> TorchCommunicator:
    """Return the group of all processes over `backend`, made at the first call; collective.

    Who has called `init_process_group` already keeps that group; another backend gets one beside.
    Few numbers and texts travel over gloo where the backend is NCCL, which knows GPUs only.

    Raises:
        LaunchError: The processes do not find each other.
    """
    talk = "gloo" if backend == "nccl" else backend
    if not dist.is_initialized():
        if not torch_group():
            import manyhands.torch_mpi  # noqa: F401 — the backend mpi4py, a store without a port
        try:
            dist.init_process_group(talk)
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            reason = str(error).splitlines()[0]
            raise LaunchError(
                f"the processes do not find each other at {place} (MASTER_ADDR, MASTER_PORT): "
                f"{reason}"
            ) from None
        atexit.register(_destroy_group)
    return TorchCommunicator(backend, _group_over(talk), _group_over(backend))


# Groups of everybody, by backend, each with the world that it was made in.
_beside: dict[str, tuple[Any, dist.ProcessGroup]] = {}


def _group_over(backend: str) -> dist.ProcessGroup | None:
    """Return the group of all processes over that backend; None is the default one."""
    if dist.get_backend() == backend:
        return None
    world = dist.group.WORLD
    if backend not in _beside or _beside[backend][0] is not world:
        _beside[backend] = world, dist.new_group(backend=backend)
    return _beside[backend][1]


def _destroy_group() -> None:
    """End the group's threads; a gloo thread that outlives the interpreter aborts the process."""
    _beside.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


class TorchCommunicator:
    """A group of workers over torch.distributed's world.

    Args:
        backend: What carries vectors.
        talk: The group for few numbers and texts, in the host's memory.
        vectors: The group for vectors.
    """

    def __init__(
        self, backend: str, talk: dist.ProcessGroup | None, vectors: dist.ProcessGroup | None
    ) -> None:
        self.name = f"torch:{backend}"
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.meter = Meter()
        self._talk, self._vectors = talk, vectors
        self._batched = backend == "nccl"

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the group, in place; the same bits on every worker."""
        if algorithm != "auto":
            raise ConfigError(f"allreduce is {algorithm!r}, but {self.name} has its own; use auto")
        begin = time.perf_counter()
        dist.all_reduce(vector, group=self._vectors)
        if vector.is_cuda:  # NCCL only begins; without waiting the time would be another's
            torch.cuda.current_stream().synchronize()
        self._count(f"allreduce {self.name}", vector, begin)

    def broadcast(self, vector: Tensor, root: int = 0) -> None:
        """Give everyone root's `vector`, in place."""
        begin = time.perf_counter()
        dist.broadcast(vector, root, group=self._vectors)
        self._count("broadcast", vector, begin)

    def exchange(self, vector: Tensor, received: Mapping[int, Tensor]) -> Callable[[], None]:
        """Begin an exchange, as `Communicator` describes it; the result ends it."""
        begin = time.perf_counter()
        works = self._complete_exchange(vector, received)
        begun = time.perf_counter() - begin

        def end() -> None:
            begin = time.perf_counter()
            for work in works:
                if work is not None:  # what torch returns to who is not in the group
                    work.wait()
            seconds = begun + time.perf_counter() - begin
            self.meter.add_exchange(vector.nbytes, len(received), seconds)

        return end

    def exchange_parts(
        self, parts: Mapping[int, Tensor], received: Mapping[int, Tensor], tag: int = 0
    ) -> Exchange:
        """Begin an exchange of parts, as `Communicator` describes it; the result ends it."""
        group = self._vectors
        begin = time.perf_counter()
        works = [dist.irecv(theirs, rank, group, tag) for rank, theirs in received.items()]
        works += [dist.isend(part, rank, group, tag) for rank, part in parts.items()]
        sent = sum(part.nbytes for part in parts.values())
        return _Parts(works, sent, len(parts), self.meter, time.perf_counter() - begin)

    def progress(self) -> None:
        """Do nothing: the group's threads make progress by themselves."""

    def _complete_exchange(
        self, vector: Tensor, received: Mapping[int, Tensor]
    ) -> list[dist.Work | None]:
        group = self._vectors
        if not self._batched:
            works = [dist.irecv(theirs, rank, group) for rank, theirs in received.items()]
            return works + [dist.isend(vector, rank, group) for rank in received]
        # NCCL runs one after the other, unless it is told of all: two who send first would wait.
        pairs = [dist.P2POp(dist.irecv, theirs, rank, group) for rank, theirs in received.items()]
        pairs += [dist.P2POp(dist.isend, vector, rank, group) for rank in received]
        return list(dist.batch_isend_irecv(pairs)) if pairs else []

    def split(self, colour: int) -> TorchCommunicator:
        """Refuse: a strategy that splits its group runs over MPI only."""
        raise ConfigError(f"comm.split needs MPI, but the group is {self.name}; set torch=False in "
                          "the strategy's supports")  # fmt: skip

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a few numbers over the group, off the meter."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum over the group, off the meter."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def begin_maximum(self, values: np.ndarray) -> Ready:
        """Return the maximum at once: this group has no background operations."""
        return Ready(self.maximum(values))

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's `value` (anything JSON can hold) on all of them, by rank."""
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(mine)]), group=self._talk)
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)  # gloo wants parts of one size
        padded[: len(mine)] = mine
        everyones = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(everyones, padded, group=self._talk)
        pairs = zip(everyones, lengths, strict=True)
        return [json.loads(part[: int(length)].numpy().tobytes()) for part, length in pairs]

    def barrier(self) -> None:
        """Wait for everyone."""
        dist.barrier(self._talk)

    def lost(self, error: BaseException) -> bool:
        """Return whether `error` only tells that another worker is gone."""
        return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _GONE)

    def release(self) -> None:
        """Keep everything: groups beside the default one serve the next run."""

    def abort(self, code: int) -> None:
        """End this process with that exit code; torchrun then ends the others."""
        flush_output()
        os._exit(code)

    def _reduced(self, values: np.ndarray, op: Any) -> np.ndarray:
        total = torch.from_numpy(np.array(values))
        dist.all_reduce(total, op, group=self._talk)
        return total.numpy()

    def _count(self, operation: str, vector: Tensor, begin: float) -> None:
        seconds = time.perf_counter() - begin
        self.meter.add(operation, payload=vector.nbytes, sent=None, messages=None, seconds=seconds)


@dataclass(frozen=True)
class _Parts:
    """An exchange of parts in progress; it has sent so many bytes, in so many messages."""

    works: list[dist.Work | None]
    sent: int
    messages: int
    meter: Meter
    seconds: float

    def __call__(self) -> None:
        """Wait until all parts have arrived."""
        begin = time.perf_counter()
        for work in self.works:
            if work is not None:
                work.wait()
        seconds = self.seconds + time.perf_counter() - begin
        self.meter.add_parts(self.sent, self.messages, seconds)

    def arrived(self) -> bool:
        """Return whether all have arrived."""
        return all(work is None or work.is_completed() for work in self.works)
