"""The instructor's tests of assignment 3; not for the hand-out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from public_tests import reduce_all, reduce_by_ring, reduce_naively

from manyhands.testing import graded

SIZES = (0, 1, 2, 3, 7, 64, 101)


@graded(2, processes=3, messages=True)
def naive_of_three(mine: Any, comm: Any) -> None:
    """The naive all-reduce is right for three processes, every size, and the maximum."""
    for size in SIZES:
        reduce_naively(mine, comm, size)
        reduce_naively(mine, comm, size, np.maximum)


@graded(2, processes=5, messages=True)
def ring_of_five(mine: Any, comm: Any) -> None:
    """The ring is right for five processes and every size, also those that 5 does not divide."""
    for size in SIZES:
        reduce_by_ring(mine, comm, size)


@graded(1, processes=4, messages=True)
def ring_of_other_operators(mine: Any, comm: Any) -> None:
    """The ring takes any operator: maximum, minimum, product."""
    for op in (np.maximum, np.minimum, np.multiply):
        reduce_by_ring(mine, comm, 8, op)


@graded(1, messages=True)
def one_process(mine: Any, comm: Any) -> None:
    """With one process both copy the array."""
    for function in (mine.naive, mine.ring):
        reduce_all(function, comm, 5)


@graded(3, processes=3, messages=True)
def large_ring(mine: Any, comm: Any) -> None:
    """The ring does not rely on MPI to buffer: arrays of 8 MB do not deadlock."""
    reduce_by_ring(mine, comm, 1_000_000)


@graded(1, processes=4, messages=True)
def naive_sends_all_to_everyone(mine: Any, comm: Any) -> None:
    """A process of the naive one sends its whole array to each other process, once."""
    send = np.ones(400)
    mine.naive(send, np.empty(400), comm, np.add)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    expected = len(others) * send.nbytes
    assert sorted(comm.sent_to) == others, f"sent to {sorted(comm.sent_to)}, expected {others}"
    assert comm.bytes_sent == expected, f"sent {comm.bytes_sent} bytes, expected {expected}"
    assert comm.messages_sent == len(others), f"sent {comm.messages_sent} messages"


@graded(2, processes=4, messages=True)
def ring_sends_little(mine: Any, comm: Any) -> None:
    """A process of the ring sends 2 (P-1)/P times the array, in 2 (P-1) messages."""
    size, P = 400, comm.size  # noqa: N806
    send, recv = np.ones(size), np.empty(size)
    mine.ring(send, recv, comm, np.add)
    expected = 2 * (P - 1) * send.nbytes // P
    assert comm.bytes_sent == expected, f"sent {comm.bytes_sent} bytes, expected {expected}"
    assert comm.messages_sent == 2 * (P - 1), f"sent {comm.messages_sent} messages"


@graded(2)
def bytes_by_formula(mine: Any, _: Any) -> None:
    """The bytes of both algorithms follow their formulas."""
    for processes in (1, 2, 4, 8):
        for name, factor in (("naive", processes - 1), ("ring", 2 * (processes - 1) / processes)):
            sent, expected = mine.bytes_each(name, 800, processes), 800 * factor
            assert math.isclose(sent, expected, abs_tol=1e-9), (
                f"bytes_each({name!r}, 800, {processes}) is {sent}, expected {expected}"
            )


@graded(2)
def seconds_by_formula(mine: Any, _: Any) -> None:
    """The times of both follow their formulas, for small arrays and large ones."""
    for processes in (2, 4, 8):
        more = processes - 1
        for size in (8, 8_000_000):
            expected = {
                "naive": more * (1e-5 + size * 1e-9),
                "ring": 2 * more * (1e-5 + size / processes * 1e-9),
            }
            for name, seconds in expected.items():
                found = mine.cost(name, size, processes, 1e-5, 1e-9)
                assert math.isclose(found, seconds, rel_tol=1e-9), (
                    f"cost({name!r}, {size}, {processes}, 1e-5, 1e-9) is {found}, "
                    f"expected {seconds}"
                )
