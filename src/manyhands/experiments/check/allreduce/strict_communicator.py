"""An mpi4py communicator that counts, keeps MPI's promises to the letter, and never spins.

It grants no more than the MPI standard does, so that a program that is right by luck fails here:

- A send completes when it is received, however small; MPI may buffer it, and need not.
- What a non-blocking receive receives appears when its request completes, not before.
- What a non-blocking send sends must not change before its request completes.

Use it only in a process of its own: `install` replaces classes of `mpi4py.MPI`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from manyhands.allreduce.metered import message_bytes
from manyhands.experiments.check.allreduce.call_trace import Trace

_Request, _Win, _world = MPI.Request, MPI.Win, MPI.COMM_WORLD
_trace: Trace


class Request(MPI.Request):
    """A request that is waited for by asking."""

    def __new__(cls, inner: Any = None, *_: Any, **__: Any) -> Request:
        """Take over the request `inner`."""
        made: Request = _Request.__new__(cls, inner)
        return made

    def __init__(self, inner: Any = None, call: str = "", sent: Any = None, into: Any = None):
        self.call, self.sent, self.into = call, sent, into
        self.place = _trace.place() if call else None
        self.sum = _checksum(sent)
        self.value: Any = None
        self.over = inner is None
        if call:
            _trace.open.append(self)

    def _ask(self, status: Any = None) -> bool:
        if self.over:
            return True
        status = MPI.Status() if status is None else status
        over, self.value = _Request.test(self, status)
        if over:
            self._end(status)
        return bool(over)

    def _end(self, status: Any) -> None:
        self.over = True
        if self in _trace.open:
            _trace.open.remove(self)
        if self.into is not None:
            staged, target = self.into
            count = status.Get_count(MPI.BYTE)
            target[:count] = staged[:count]
        if _checksum(self.sent) != self.sum:
            _trace.note(
                "changed",
                f"what {self.call} sends was changed before its request was complete",
                self.place,
            )

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def Wait(self, status: Any = None) -> Literal[True]:  # noqa: N802
        """Wait."""
        _trace.wait(f"Wait for {self.call}", lambda: self._ask(status))
        return True

    def wait(self, status: Any = None) -> Any:
        """Wait; return the object that was received."""
        self.Wait(status)
        return self.value

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        """Return whether it is complete."""
        return self._ask(status) or _pause()

    def test(self, status: Any = None) -> tuple[bool, Any]:
        """Return whether it is complete, and the object that was received."""
        return (self.Test(status), self.value)

    @classmethod
    def Waitall(cls, requests: Any, statuses: Any = None) -> Literal[True]:  # noqa: N802
        """Wait for all."""
        calls = "Waitall for " + ", ".join(r.call for r in requests if not r.over)
        _trace.wait(calls, lambda: _ask_all(requests))
        return True

    @classmethod
    def waitall(cls, requests: Any, statuses: Any = None) -> list[Any]:
        """Wait for all; return the objects that were received."""
        cls.Waitall(requests)
        return [request.value for request in requests]

    @classmethod
    def Testall(cls, requests: Any, statuses: Any = None) -> bool:  # noqa: N802
        """Return whether all are complete."""
        return _ask_all(requests) or _pause()

    @classmethod
    def Waitany(cls, requests: Any, status: Any = None) -> int:  # noqa: N802
        """Wait for one; return its place."""
        active = [r for r in requests if not r.over]
        if not active:
            return int(MPI.UNDEFINED)
        _trace.wait("Waitany", lambda: any(r._ask(status) for r in active))
        return next(n for n, r in enumerate(requests) if r in active and r.over)


def _ask_all(requests: Any) -> bool:
    """Return whether all are complete, after each was asked."""
    return sum(not request._ask() for request in requests) == 0


def _pause() -> bool:
    """Give the core away between two questions of the user's own loop; return False."""
    first = iter((False, True))
    _trace.wait("Test", lambda: next(first))
    return False


def _checksum(buffer: Any) -> int:
    try:
        return 0 if buffer is None else zlib.adler32(np.ascontiguousarray(buffer).tobytes())
    except (TypeError, ValueError):
        return 0


def _array(buffer: Any) -> np.ndarray[Any, Any] | None:
    """Return the contiguous array in one of mpi4py's forms for a buffer, if that is what it is."""
    data = buffer[0] if isinstance(buffer, (list, tuple)) and buffer else buffer
    plain = isinstance(data, np.ndarray) and data.flags.c_contiguous
    return data if plain else None


def _stage(buffer: Any) -> tuple[Any, Any]:
    """Return where to receive instead of an array, and how to deliver it."""
    if not isinstance(buffer, np.ndarray) or not buffer.flags.carray or buffer.ndim == 0:
        return buffer, None
    target = buffer.reshape(-1).view(np.uint8) if buffer.size else np.empty(0, np.uint8)
    staged = np.empty_like(target)
    return staged, (staged, target)


class Comm(MPI.Intracomm):
    """A communicator that counts into the process's trace."""

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:  # noqa: N802
        """Count, and begin to send."""
        _trace.sent(message_bytes(buf), dest)
        call = f"Isend to rank {dest}"
        if _trace.buffered and (array := _array(buf)) is not None and buf is array:
            copied = array.copy()
            _trace.kept.append(copied)
            return Request(super().Isend(copied, dest, tag), call, array)
        return Request(super().Issend(buf, dest, tag), call, _array(buf))

    Issend = Isend

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:  # noqa: N802
        """Count, and send."""
        with _renamed("Send"):
            request = self.Isend(buf, dest, tag)
        if _trace.buffered:
            _trace.open.remove(request)
            _trace.kept.append(request)
            return
        _trace.wait(f"Send to rank {dest}", request._ask)

    Ssend = Send

    def Irecv(  # noqa: N802
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> Request:
        """Begin to receive."""
        staged, into = _stage(buf)
        return Request(
            super().Irecv(staged, source, tag), f"Irecv from {_name(source)}", None, into
        )

    def Recv(  # noqa: N802
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None
    ) -> None:
        """Receive."""
        request = self.Irecv(buf, source, tag)
        _trace.wait(f"Recv from {_name(source)}", lambda: request._ask(status))

    def Sendrecv(  # noqa: N802
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: Any = None,
    ) -> None:
        """Send and receive at once."""
        receive = self.Irecv(recvbuf, source, recvtag)
        send = self.Isend(sendbuf, dest, sendtag)
        _trace.wait(
            f"Sendrecv to rank {dest}, from {_name(source)}",
            lambda: receive._ask(status) & send._ask(),
        )

    def Sendrecv_replace(  # noqa: N802
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: Any = None,
    ) -> None:
        """Send and receive in one buffer."""
        self.Sendrecv(np.array(buf), dest, sendtag, buf, source, recvtag, status)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Count, and begin to send an object."""
        _trace.sent(len(MPI.pickle.dumps(obj)), dest)
        begin = super().isend if _trace.buffered else super().issend
        return Request(begin(obj, dest, tag), f"isend to rank {dest}")

    issend = isend

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Count, and send an object."""
        request = self.isend(obj, dest, tag)
        if _trace.buffered:
            _trace.open.remove(request)
            _trace.kept.append(request)
            return
        _trace.wait(f"send to rank {dest}", request._ask)

    ssend = send

    def irecv(
        self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> Request:
        """Begin to receive an object."""
        return Request(super().irecv(buf, source, tag), f"irecv from {_name(source)}")

    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: Any = None,
    ) -> Any:
        """Receive an object."""
        found: list[Any] = []
        _trace.wait(f"recv from {_name(source)}", lambda: self._probe(found, source, tag, status))
        return found[0].recv()

    def _probe(self, found: list[Any], source: int, tag: int, status: Any) -> bool:
        message = super().improbe(source, tag, status)
        if message is not None:
            found.append(message)
        return message is not None

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: Any = None,
    ) -> Any:
        """Send and receive objects at once."""
        request, found = self.isend(sendobj, dest, sendtag), list[Any]()
        _trace.wait(
            f"sendrecv to rank {dest}, from {_name(source)}",
            lambda: (bool(found) or self._probe(found, source, recvtag, status)) & request._ask(),
        )
        return found[0].recv()


class World(Comm):
    """`MPI.COMM_WORLD`, where the checked function should use its own communicator."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            _trace.note(
                "communicator",
                f"uses MPI.COMM_WORLD.{name}; expected its argument comm, which may be a part of "
                "the world",
                _trace.place(),
            )
        return super().__getattribute__(name)


class Win(MPI.Win):
    """Windows of shared or remote memory, which are not point-to-point."""


def _name(source: int) -> str:
    return "any rank" if source == MPI.ANY_SOURCE else f"rank {source}"


@contextmanager
def _renamed(call: str) -> Iterator[None]:
    """Let the request that is made here be of another call."""
    known = len(_trace.open)
    yield
    for request in _trace.open[known:]:
        request.call = request.call.replace("Isend", call)


# Collectives that have a non-blocking twin, which is waited for by asking.
_COLLECTIVES = (
    "Allreduce", "Reduce", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather",
    "Allgatherv", "Alltoall", "Alltoallv", "Reduce_scatter", "Reduce_scatter_block", "Scan",
    "Exscan", "Barrier",
)  # fmt: skip
_OF_OBJECTS = (
    "allreduce", "reduce", "bcast", "gather", "scatter", "allgather", "alltoall", "scan", "exscan",
    "barrier",
)  # fmt: skip
_PARTS = ("Dup", "Clone", "Split", "Split_type", "Create", "Create_group", "Create_cart")
_WINDOWS = ("Create", "Allocate", "Allocate_shared", "Create_dynamic")


def _collective(name: str, begun: str) -> Any:
    begin = getattr(MPI.Intracomm, begun)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _trace.collective(name)
        request = Request(begin(self, *args, **kwargs), name)
        if name == begun:
            return request
        _trace.wait(name, request._ask)
        return None

    return call


def _blocking(name: str, kind: type, adopt: type | None = None) -> Any:
    """Return a method that blocks within MPI; what it makes becomes of the kind `adopt`."""
    method = getattr(kind, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if adopt is not Comm:
            _trace.collective(name if adopt is None else f"Win.{name}")
        with _trace.calling(name):
            made = method(self, *args, **kwargs)
        null = made is None or made == MPI.COMM_NULL or adopt is not Comm
        return made if null else Comm(made)

    return call


def _window(name: str) -> Any:
    method = getattr(_Win, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        _trace.collective(f"Win.{name}")
        with _trace.calling(f"Win.{name}"):
            return method(*args, **kwargs)

    return staticmethod(call)


for _each in _COLLECTIVES:
    setattr(Comm, _each, _collective(_each, f"I{_each.lower()}"))
    setattr(Comm, f"I{_each.lower()}", _collective(f"I{_each.lower()}", f"I{_each.lower()}"))
for _each in _OF_OBJECTS:
    setattr(Comm, _each, _blocking(_each, MPI.Intracomm))
for _each in _PARTS:
    setattr(Comm, _each, _blocking(_each, MPI.Intracomm, Comm))
for _each in _WINDOWS:
    setattr(Win, _each, _window(_each))


def install(trace: Trace) -> None:
    """Use `trace` for this process, and these classes for `mpi4py.MPI`'s."""
    global _trace
    _trace = trace
    for name, value in (("Request", Request), ("Win", Win), ("COMM_WORLD", World(_world))):
        setattr(MPI, name, value)
