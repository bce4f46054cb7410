"""The hidden communicator beside the user's, and what else the all-reduces keep with it.

Messages travel on a duplicate of the user's communicator, so that they can never be mistaken for
the user's own, whatever tags those use. The duplicate, the shared window and the groups within
hosts are made at the first use, kept as an attribute of the communicator, and freed with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.allreduce.metered import Meter, Metered
from manyhands.allreduce.same_host_ranks import same_host, same_kernel
from manyhands.allreduce.wait import cores, wait_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpi4py import MPI

_keyval: int | None = None
_MASK_BITS = 4096  # more cores than a host has


class PrivateComm:
    """One communicator's private duplicate and what is attached to it.

    Attributes:
        comm: The duplicate.
        per_host: How many of these processes share one host's memory, on the fullest host.
        crowded: Whether some kernel has more of these processes than cores they may use.
            Both are the same on all ranks.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self.comm: Any = comm.Dup()
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size
        host, kernel = same_host(self.comm), same_kernel(self.comm)
        mask = np.zeros(_MASK_BITS, np.uint8)
        mask[[core % _MASK_BITS for core in cores()]] = 1
        kernel.Allreduce(MPI.IN_PLACE, mask, MPI.MAX)
        facts = np.array([host.size, kernel.size > mask.sum()], np.int64)
        self.comm.Allreduce(MPI.IN_PLACE, facts, MPI.MAX)
        host.Free()
        kernel.Free()
        self.per_host, self.crowded = int(facts[0]), bool(facts[1])
        self.channel = Channel(self, None)
        self._kept: dict[object, Any] = {}

    def keep(self, key: object, make: Callable[[], Any]) -> Any:
        """Return the object under `key`, made by all ranks together at the first use."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def wait(self, requests: Sequence[MPI.Request]) -> None:
        """Return when all `requests` are complete."""
        wait_all(requests, self.crowded)

    def free(self) -> None:
        """Free what is kept, latest first, then the duplicate; all ranks together."""
        while self._kept:
            self._kept.popitem()[1].free()
        self.comm.Free()


class Channel:
    """An algorithm's view of a group: rank, size, and how to send, receive and wait."""

    __slots__ = ("comm", "crowded", "meter", "private", "rank", "size")

    def __init__(self, private: Any, meter: Meter | None) -> None:
        self.private = private
        self.meter = meter
        self.comm = private.comm if meter is None else Metered(private.comm, meter)
        self.rank: int = private.rank
        self.size: int = private.size
        self.crowded: bool = private.crowded

    def wait(self, *requests: Any) -> None:
        """Return when all `requests` are complete."""
        self.private.wait(requests)

    def count_shared(self, nbytes: int) -> None:
        """Note that `nbytes` were written into shared memory."""
        if self.meter is not None:
            self.meter.shared += nbytes


def channel(comm: Any) -> Channel:
    """Return the private channel of `comm`, made by all its ranks together at the first use."""
    if isinstance(comm, Metered):
        if comm.channel is None:
            comm.channel = Channel(_private_comm(comm.comm), comm.meter)
        cached: Channel = comm.channel
        return cached
    return _private_comm(comm).channel


def duplicate(comm: MPI.Comm) -> MPI.Comm | None:
    """Return the private duplicate of `comm`, if one was made."""
    cached: Any = None if _keyval is None else comm.Get_attr(_keyval)
    return cached.comm if cached else None


def _private_comm(comm: Any) -> PrivateComm:
    global _keyval
    if hasattr(comm, "private"):  # not MPI's: it brings its own
        return comm.private  # type: ignore[no-any-return]
    if _keyval is None:
        from mpi4py import MPI

        _keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, private: private.free())
    cached = comm.Get_attr(_keyval)
    if cached is None:
        cached = PrivateComm(comm)
        comm.Set_attr(_keyval, cached)
    return cached  # type: ignore[no-any-return]
