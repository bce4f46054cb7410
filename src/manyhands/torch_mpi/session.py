"""Communicators and the end of the process, from the first group on.

A rank that ends with an exception ends all ranks, after its traceback: the others may be waiting
for it, and MPI would let them. A rank that simply comes to its end lets go of its groups as
`destroy_process_group` does.
"""

from __future__ import annotations

import atexit
import os
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from mpi4py import MPI

from manyhands.allreduce.shared_memory import prepare
from manyhands.launch.environment import flush_output
from manyhands.torch_mpi.engine import Engine

if TYPE_CHECKING:
    import torch.distributed as dist


class Group(Protocol):
    """What this module needs from a process group."""

    comm: Any

    def meet(self) -> dist.Work:
        """Wait for all members."""


_open: list[Group] = []


@cache
def engine() -> Engine:
    """Return this process's engine.

    Raises:
        RuntimeError: MPI does not allow threads.
    """
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "MPI was started without support for threads; leave mpi4py.rc.thread_level at "
            "'multiple'"
        )
    atexit.register(_at_exit, os.getpid())
    return Engine()


def communicator(rank: int, size: int, members: Sequence[int], name: str) -> Any:
    """Return a new communicator for a group; all its members together.

    Args:
        rank: This process's rank in the group.
        size: How many there are.
        members: Their ranks in the default group; empty for that group itself.
        name: The group's.

    Raises:
        RuntimeError: The default group is not what mpiexec started.
    """
    world: Any = MPI.COMM_WORLD
    if not members:
        if size != world.size:
            raise RuntimeError(
                f"world_size is {size} but MPI started {world.size} processes; start it as "
                f"`mpiexec -n {size} python …`, with the mpiexec of the MPI that mpi4py uses "
                f"here: {MPI.Get_library_version().splitlines()[0].strip()}"
            )
        return world.Split(0, rank)
    parent = next((group.comm for group in _open if group.comm.size == world.size), world)
    chosen = parent.group.Incl(list(members))
    comm = parent.Create_group(chosen, zlib.crc32(name.encode()) % 32768)
    chosen.Free()
    return comm


def open_group(group: Group) -> None:
    """Make in advance what the group's operations need; collective."""
    engine()
    prepare(group.comm)
    _open.append(group)


def close_group(group: Group) -> None:
    """Free the group's communicator once all its members are here; collective.

    Where one of them does not come within the group's timeout it is left to the end of MPI.
    """
    if group not in _open:
        return
    _open.remove(group)
    with suppress(RuntimeError):
        group.meet().wait()
        group.comm.Free()


def _at_exit(owner: int) -> None:
    """Close what is open, or after an exception end all ranks."""
    if os.getpid() != owner or MPI.Is_finalized():
        return
    if _open and getattr(sys, "last_value", None) is not None and MPI.COMM_WORLD.size > 1:
        flush_output()
        MPI.COMM_WORLD.Abort(1)
    while _open:
        close_group(_open[-1])
    engine().close()
