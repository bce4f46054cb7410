"""Chooses the fastest all-reduce for this message and this group."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.allreduce.buffers import Array, Op
from manyhands.allreduce.hidden_communicator import channel
from manyhands.allreduce.hierarchical import hierarchical
from manyhands.allreduce.mpi import by_name, native
from manyhands.allreduce.recursive_doubling import recursive_doubling
from manyhands.allreduce.ring import ring
from manyhands.allreduce.shared_memory import in_group

# Below this many bytes it is MPI's own for every group, so that the group need not be looked at.
SMALL = 4 << 10
# Bytes per process of the group from which on shared memory beats MPI's own on one host; in a group
# of few it does from SMALL on. Measured with MPICH 5; see docs/algorithms/allreduce.md.
SHARED_FROM = 2 << 10
FEW = 4
# Bytes from which on, between hosts, sending less matters more than sending seldom. Not measured:
# it is where a network of 10 µs and 1 GB/s spends as long on the bytes as on starting the
# messages.
BANDWIDTH_FROM = 32 << 10

# The communicator last used, and what `_host_and_threshold` says of it.
_last: tuple[Any, int, bool] = (None, SMALL, False)
_CHOSEN = {
    "ring": ring,
    "recursive-doubling": recursive_doubling,
    "hierarchical": hierarchical,
}


def choose(nbytes: int, size: int, *, per_host: int | None = None, native: bool = True) -> str:
    """Return the name of the algorithm to use.

    Args:
        nbytes: Bytes of the array.
        size: Processes in the group.
        per_host: Processes on the fullest host; None means all of them.
        native: Whether MPI itself has the operation on this dtype.
    """
    if native and nbytes < SMALL:
        return "mpi"
    if size == 1:
        return "ring"  # a copy
    if per_host is None or per_host == size:
        return "mpi" if native and nbytes < _shared_from(size) else "shared-memory"
    if nbytes < BANDWIDTH_FROM:
        return "mpi" if native else "recursive-doubling"
    if per_host > 1:
        return "hierarchical"
    return "mpi" if native else "ring"


def _shared_from(size: int) -> int:
    return SMALL if size <= FEW else SHARED_FROM * size


def _host_and_threshold(comm: Any) -> tuple[Any, int, bool]:
    """Return the byte threshold for MPI's own, and whether all share a host."""
    global _last
    group = channel(comm)
    together = 1 < group.size == group.private.per_host
    _last = (comm, _shared_from(group.size) if together else SMALL, together)
    return _last


def auto(send: Array, recv: Array, comm: Any, op: Op = np.add) -> None:
    """Reduce `send` over all ranks of `comm` into `recv` by the algorithm that `choose` names.

    Guarantees: those that all the algorithms share. Every rank chooses alike, because the choice
    depends only on what all ranks must pass alike. Arguments as for `naive`.
    """
    asked, few, together = _last  # few: never less than SMALL, whose ever it is
    if asked is not comm and send.nbytes >= SMALL:
        asked, few, together = _host_and_threshold(comm)
    if send.nbytes < few:
        if (own := native(op, send.dtype)) is not None:
            by_name(send, recv, comm, own)  # at once: it takes less than finding the group
            return
    elif together:
        in_group(send, recv, channel(comm), op)  # at once, too
        return
    own = native(op, send.dtype)
    group = channel(comm)
    per_host = group.private.per_host
    name = choose(send.nbytes, group.size, per_host=per_host, native=own is not None)
    if name == "shared-memory":
        in_group(send, recv, group, op)
    elif name == "mpi" and own is not None:
        by_name(send, recv, comm, own)
    else:
        _CHOSEN[name](send, recv, comm, op)
