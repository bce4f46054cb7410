"""Assignment 3: all-reduce from messages. Fill in each function that raises NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

Operator = Callable[[np.ndarray, np.ndarray], np.ndarray]  # element-wise: np.add, np.maximum, …


def naive(send: np.ndarray, recv: np.ndarray, comm: MPI.Comm, op: Operator) -> None:
    """Send the own array to every other process, and reduce all arrays into `recv`.

    `send` stays as it is. Use comm.Isend, comm.Irecv and MPI.Request.Waitall only.
    """
    raise NotImplementedError("naive")


def ring(send: np.ndarray, recv: np.ndarray, comm: MPI.Comm, op: Operator) -> None:
    """Reduce around a ring: P-1 steps that reduce a chunk each, then P-1 that share the results.

    Process r sends to r+1 and receives from r-1, modulo P. `send` stays as it is. The size of the
    array may be anything: 0, less than P, or not divisible by P.
    """
    raise NotImplementedError("ring")


def bytes_each(algorithm: str, size: int, processes: int) -> float:
    """Return the bytes that one process sends for an array of `size` bytes.

    `algorithm` is "naive" or "ring"; suppose that P divides the array.
    """
    raise NotImplementedError("bytes_each")


def cost(algorithm: str, size: int, processes: int, latency: float, per_byte: float) -> float:
    """Return the seconds of one all-reduce in the latency-bandwidth model.

    A message of m bytes takes latency + m · per_byte seconds. A process sends its messages one
    after the other; all processes send at once. Operators cost nothing.
    """
    raise NotImplementedError("cost")
