"""A communicator that counts what is sent through it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

_SENDS = ("Bsend", "Ibsend", "Irsend", "Rsend", "Sendrecv_replace", "Ssend")
_OF_OBJECTS = ("bsend", "ibsend", "isend", "issend", "send", "sendrecv", "ssend")
_COLLECTIVES = (
    "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Bcast", "Exscan", "Gather", "Gatherv",
    "Iallgather", "Ibcast", "Igather", "Ireduce", "Iscatter", "Reduce", "Reduce_scatter",
    "Reduce_scatter_block", "Scan", "Scatter", "Scatterv", "allgather", "allreduce", "alltoall",
    "bcast", "exscan", "gather", "reduce", "scan", "scatter",
)  # fmt: skip
_COUNTED = frozenset((*_SENDS, *_OF_OBJECTS, *_COLLECTIVES))


class Meter:
    """What one process has sent so far.

    Attributes:
        messages: Point-to-point messages sent.
        bytes: Bytes in those messages.
        shared: Bytes written into shared memory for other processes to read.
        collectives: Calls of MPI's own collectives; what they send is MPI's secret.
    """

    __slots__ = ("bytes", "collectives", "messages", "shared")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        self.messages = self.bytes = self.shared = self.collectives = 0

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"Meter({counts})"


class Metered:
    """An mpi4py communicator that counts messages and bytes; everything else passes through.

    The all-reduces recognise it and count into its meter also what they send on their own private
    communicator and write into shared memory:

        metered = Metered(MPI.COMM_WORLD)
        ring(send, recv, metered)
        metered.meter.bytes                # 2 (P - 1) / P of the array's, for this process
    """

    def __init__(self, comm: Any, meter: Meter | None = None) -> None:
        self.comm = comm
        self.meter = meter if meter is not None else Meter()
        self.channel: Any = None  # the private one, once it is known
        self.rank: int = comm.rank
        self.size: int = comm.size

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.comm, name)
        return self._counted(name, method) if name in _COUNTED else method

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that our own all-reduces do not call, and a user's may, with a count."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if name in _COLLECTIVES:
                self.meter.collectives += 1
            elif name in _OF_OBJECTS:
                self.meter.messages += 1
                self.meter.bytes += len(pickle.dumps(args[0], pickle.HIGHEST_PROTOCOL))
            else:
                self._count(args[0])
            return method(*args, **kwargs)

        return call

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Any:  # noqa: N802
        """Count, then send without blocking."""
        self._count(buf)
        return self.comm.Isend(buf, dest, tag)

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Any:  # noqa: N802
        """Count, then send without blocking, synchronously."""
        self._count(buf)
        return self.comm.Issend(buf, dest, tag)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:  # noqa: N802
        """Count, then send."""
        self._count(buf)
        self.comm.Send(buf, dest, tag)

    def Sendrecv(self, sendbuf: Any, dest: int, *args: Any, **kwargs: Any) -> None:  # noqa: N802
        """Count what is sent, then send and receive."""
        self._count(sendbuf)
        self.comm.Sendrecv(sendbuf, dest, *args, **kwargs)

    def Allreduce(self, *args: Any, **kwargs: Any) -> None:  # noqa: N802
        """Count the call, then let MPI reduce."""
        self.meter.collectives += 1
        self.comm.Allreduce(*args, **kwargs)

    def Iallreduce(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        """Count the call, then let MPI begin to reduce."""
        self.meter.collectives += 1
        return self.comm.Iallreduce(*args, **kwargs)

    def _count(self, buf: Any) -> None:
        self.meter.messages += 1
        self.meter.bytes += message_bytes(buf)


def message_bytes(buf: Any) -> int:
    """Return the bytes of one message, given in any of mpi4py's forms for a buffer."""
    if hasattr(buf, "nbytes"):
        return int(buf.nbytes)
    if isinstance(buf, (list, tuple)):  # [data, type], [data, count, type] …
        data, *rest = buf
        if len(rest) == 2 and isinstance(rest[0], int):
            return rest[0] * int(rest[1].Get_size())
        return message_bytes(data)
    return memoryview(buf).nbytes
