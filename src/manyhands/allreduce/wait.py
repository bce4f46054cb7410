"""Waits for messages, whether or not every process has its own core.

MPI spins while it waits, which is the fastest thing to do on a core of one's own. Where processes
share cores, a spinning process keeps the one it waits for from running; there we ask, and give
the core away between questions.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py import MPI


def wait_all(requests: Sequence[MPI.Request], crowded: bool) -> None:
    """Return when all `requests` are complete; `crowded` says that processes share cores."""
    from mpi4py import MPI

    if not crowded:
        MPI.Request.Waitall(requests)
        return
    while not MPI.Request.Testall(requests):
        os.sched_yield()


def cores() -> set[int]:
    """Return the numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
