"""Assignment 3 with a typical mistake: everyone sends and waits before receiving."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

Operator = Callable[[np.ndarray, np.ndarray], np.ndarray]


def naive(send: np.ndarray, recv: np.ndarray, comm: MPI.Comm, op: Operator) -> None:
    """Send the own array to every other process, and reduce all arrays into `recv`."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    arrived = {rank: np.empty_like(send) for rank in others}
    requests = [comm.Irecv(arrived[rank], rank) for rank in others]
    requests += [comm.Isend(send, rank) for rank in others]
    MPI.Request.Waitall(requests)
    arrived[comm.rank] = send
    recv[...] = arrived[0]
    for rank in range(1, comm.size):  # in this order everywhere: the same bits on all processes
        recv[...] = op(recv, arrived[rank])


def ring(send: np.ndarray, recv: np.ndarray, comm: MPI.Comm, op: Operator) -> None:
    """Reduce around a ring: P-1 steps that reduce a chunk each, then P-1 that share the results."""
    P, r = comm.size, comm.rank  # noqa: N806
    following, preceding = (r + 1) % P, (r - 1) % P
    recv[...] = send
    chunks = np.array_split(recv, P)  # views
    arrived = np.empty_like(chunks[0])
    for step in range(P - 1):
        out, into = chunks[(r - step) % P], chunks[(r - step - 1) % P]
        place = arrived[: into.size]
        comm.Isend(out, following).Wait()
        comm.Irecv(place, preceding).Wait()
        into[...] = op(into, place)
    for step in range(P - 1):
        out, into = chunks[(r + 1 - step) % P], chunks[(r - step) % P]
        comm.Isend(out, following).Wait()
        comm.Irecv(into, preceding).Wait()


def bytes_each(algorithm: str, size: int, processes: int) -> float:
    """Return the bytes that one process sends for an array of `size` bytes."""
    return (processes - 1) * size * (1 if algorithm == "naive" else 2 / processes)


def cost(algorithm: str, size: int, processes: int, latency: float, per_byte: float) -> float:
    """Return the seconds of one all-reduce in the latency-bandwidth model."""
    messages = (processes - 1) * (1 if algorithm == "naive" else 2)
    message = size if algorithm == "naive" else size / processes
    return messages * (latency + message * per_byte)
