"""Finds the ranks of a communicator on this host, and those that share its cores."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from manyhands.launch.host import hostname, kernel_id

if TYPE_CHECKING:
    from mpi4py import MPI


def same_host(comm: MPI.Comm) -> MPI.Comm:
    """Return the ranks of `comm` that share this host's memory and name. Collective.

    MPI alone would also put simulated hosts together, whose memory could be shared only because
    they are simulated. The caller frees it.
    """
    from mpi4py import MPI

    sharing = comm.Split_type(MPI.COMM_TYPE_SHARED)
    here = _split_by_name(sharing, hostname())
    sharing.Free()
    return here


def same_kernel(comm: MPI.Comm) -> MPI.Comm:
    """Return the ranks of `comm` that run under this kernel, on its cores. Collective."""
    return _split_by_name(comm, kernel_id())


def _split_by_name(comm: MPI.Comm, name: str) -> MPI.Comm:
    """Return those of `comm` that give the same name."""
    mine = np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint8)
    everyone = np.empty((comm.size, mine.size), np.uint8)
    comm.Allgather(mine, everyone)
    return comm.Split(int((everyone == mine).all(axis=1).argmax()), comm.rank)
