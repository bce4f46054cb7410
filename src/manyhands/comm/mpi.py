"""The communicator over MPI: buffers only, never pickles."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from mpi4py import MPI

from manyhands.allreduce import ALGORITHMS, Metered, choose
from manyhands.allreduce.hidden_communicator import channel
from manyhands.allreduce.shared_memory import Through, reduce_through
from manyhands.comm.communicator import Exchange, Pending, Ready
from manyhands.comm.meter import Meter
from manyhands.comm.own_allreduce_call import OwnAllReduce
from manyhands.launch.environment import flush_output

if TYPE_CHECKING:
    from torch import Tensor


class MPICommunicator:
    """A group of workers over an MPI communicator.

    Without `windows` its all-reduce of choice is MPI's own, which needs no shared memory.
    """

    def __init__(self, comm: MPI.Comm, *, windows: bool = True) -> None:
        self.name = "mpi"
        self.comm = comm
        self.windows = windows
        self.metered = Metered(comm)
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.meter = Meter()
        self.own: dict[str, OwnAllReduce] = {}  # the user's all-reduces, by name
        self._parts: list[MPICommunicator] = []

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the group, in place; the same bits on every worker."""
        if self.size == 1:
            return
        array = vector.numpy()
        if algorithm == "auto" and not self.windows:
            algorithm = "mpi"
        self.metered.meter.reset()
        begin = time.perf_counter()
        (self.own.get(algorithm) or ALGORITHMS[algorithm])(array, array, self.metered)
        self._count(algorithm, array.nbytes, time.perf_counter() - begin)

    def shares(self, nbytes: int) -> bool:
        """Return whether `auto` sums so many bytes in memory that the whole group shares."""
        per_host = channel(self.comm).private.per_host if self.windows else 0
        return self.size == per_host and choose(nbytes, self.size) == "shared-memory"

    def allreduce_through(
        self, vector: Tensor, out: Tensor, algorithm: str, through: Through
    ) -> float:
        """Sum `vector` in shared memory, and let `through` transform each reduced piece.

        It is called for those parts of the sum that are this worker's to reduce, with the numbers
        and their place in the vector, and puts what all get in that place of `out` in their stead.
        Returns the seconds that it took, which are off the meter; there this is an all-reduce by
        `algorithm`.
        """
        inside = 0.0

        def timed(reduced: np.ndarray, place: slice) -> None:
            nonlocal inside
            begin = time.perf_counter()
            through(reduced, place)
            inside += time.perf_counter() - begin

        self.metered.meter.reset()
        begin = time.perf_counter()
        reduce_through(vector.numpy(), out.numpy(), self.metered, np.add, timed)
        self._count(algorithm, vector.nbytes, time.perf_counter() - begin - inside)
        return inside

    def _count(self, algorithm: str, payload: int, seconds: float) -> None:
        """Meter a finished all-reduce."""
        counted = self.metered.meter
        inside = counted.collectives > 0  # what MPI's own collective sends, MPI does not tell
        self.meter.add(
            f"allreduce {algorithm}",
            payload=payload,
            sent=None if inside else counted.bytes,
            messages=None if inside else counted.messages,
            seconds=seconds,
            shared=counted.shared,
        )

    def broadcast(self, vector: Tensor, root: int = 0) -> None:
        """Give everyone root's `vector`, in place."""
        array = vector.numpy()
        begin = time.perf_counter()
        self.comm.Bcast(array, root)
        seconds = time.perf_counter() - begin
        self.meter.add("broadcast", payload=array.nbytes, sent=None, messages=None, seconds=seconds)

    def exchange(self, vector: Tensor, received: Mapping[int, Tensor]) -> Callable[[], None]:
        """Begin an exchange, as `Communicator` describes it; the result ends it."""
        count = partial(self.meter.add_exchange, vector.nbytes, len(received))
        return _Messages(self.comm, dict.fromkeys(received, vector), received, 0, count)

    def exchange_parts(
        self, parts: Mapping[int, Tensor], received: Mapping[int, Tensor], tag: int = 0
    ) -> Exchange:
        """Begin an exchange of parts, as `Communicator` describes it; the result ends it."""
        sent = sum(part.nbytes for part in parts.values())
        count = partial(self.meter.add_parts, sent, len(parts))
        return _Messages(self.comm, parts, received, tag, count)

    def progress(self) -> None:
        """Make progress on exchanges that have begun."""
        channel(self.comm).comm.Iprobe()

    def split(self, colour: int) -> MPICommunicator:
        """Return the group of the workers with the same colour; it uses this group's meter."""
        part = MPICommunicator(self.comm.Split(colour, self.rank))
        part.meter, part.own = self.meter, self.own
        self._parts.append(part)
        return part

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a few numbers over the group, off the meter."""
        return self._reduced(values, MPI.SUM)

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum over the group, off the meter."""
        return self._reduced(values, MPI.MAX)

    def begin_maximum(self, values: np.ndarray) -> Pending:
        """Begin a `maximum` in the background."""
        return Ready(values.copy()) if self.size == 1 else _Maximum(self.comm, values)

    def _reduced(self, values: np.ndarray, op: MPI.Op) -> np.ndarray:
        result = np.empty_like(values)
        self.comm.Allreduce(values, result, op)
        return result

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's `value` (anything JSON can hold) on all of them, by rank."""
        mine = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        counts = np.empty(self.size, dtype=np.int64)
        self.comm.Allgather(np.array([mine.size], dtype=np.int64), counts)
        everything = np.empty(int(counts.sum()), dtype=np.uint8)
        self.comm.Allgatherv(mine, [everything, counts])
        ends = np.cumsum(counts)
        return [
            json.loads(everything[e - c : e].tobytes()) for e, c in zip(ends, counts, strict=True)
        ]

    def barrier(self) -> None:
        """Wait for everyone."""
        self.comm.Barrier()

    def lost(self, error: BaseException) -> bool:
        """Return whether `error` only tells that another worker is gone."""
        return False

    def release(self) -> None:
        """Free the groups that were split off, with what the all-reduces keep for them."""
        while self._parts:
            part = self._parts.pop()
            part.release()
            part.comm.Free()

    def abort(self, code: int) -> None:
        """End all processes that MPI started, with that exit code, once our output is passed on."""
        flush_output()
        self.comm.Abort(code)


class _Messages:
    """Messages in progress.

    Their requests hold the memory that MPI reads and writes. Until they are complete nothing frees
    it, although whoever began them may be gone: where a worker dies, what waits raises.

    Args:
        comm: The workers.
        parts: What is sent to whom.
        received: Where that of others goes.
        tag: That of all messages.
        count: Is called with the seconds in MPI, once all have arrived.
    """

    _open: ClassVar[set[_Messages]] = set()

    def __init__(
        self,
        comm: MPI.Comm,
        parts: Mapping[int, Tensor],
        received: Mapping[int, Tensor],
        tag: int,
        count: Callable[[float], None],
    ) -> None:
        self._group, self._count = channel(comm), count
        self._requests: list[MPI.Request] = []
        self._open.add(self)
        begin, group = time.perf_counter(), self._group.comm
        for rank, theirs in received.items():
            self._requests.append(group.Irecv(theirs.numpy(), rank, tag))
        for rank, part in parts.items():
            self._requests.append(group.Isend(part.numpy(), rank, tag))
        self._seconds = time.perf_counter() - begin

    def __call__(self) -> None:
        """Wait until all have arrived."""
        begin = time.perf_counter()
        self._group.wait(*self._requests)
        self._open.discard(self)
        self._count(self._seconds + time.perf_counter() - begin)

    def arrived(self) -> bool:
        """Return whether all have arrived."""
        return bool(MPI.Request.Testall(self._requests))


class _Maximum:
    """An element-wise maximum in progress."""

    _open: ClassVar[set[_Maximum]] = set()  # what MPI still reads and writes must stay

    def __init__(self, comm: MPI.Comm, values: np.ndarray) -> None:
        self._group = channel(comm)
        self._values, self._result = values.copy(), np.empty_like(values)
        self._request = self._group.comm.Iallreduce(self._values, self._result, MPI.MAX)
        self._open.add(self)

    def progress(self) -> None:
        """Make progress."""
        self._request.Test()

    def result(self) -> np.ndarray:
        """Return the maximum once all workers have contributed."""
        self._group.wait(self._request)
        self._open.discard(self)
        return self._result
