"""The public tests of assignment 3: `manyhands check --course 3-allreduce mine.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.testing import graded


def reduce_all(function: Any, comm: Any, size: int, op: Any = np.add) -> None:
    """Compare one all-reduce with NumPy's on the same arrays."""
    arrays = [np.random.default_rng(rank).integers(-9, 9, size) * 1.0 for rank in range(comm.size)]
    send, recv = arrays[comm.rank].copy(), np.full(size, np.nan)
    function(send, recv, comm, op)
    expected = arrays[0].copy()
    for other in arrays[1:]:
        expected = op(expected, other)
    wrong = np.flatnonzero(recv != expected)
    assert wrong.size == 0, (
        f"an array of {size} numbers: recv[{wrong[0]}] is {recv[wrong[0]]}, "
        f"expected {expected[wrong[0]]}; {wrong.size} numbers are wrong"
    )
    assert np.array_equal(send, arrays[comm.rank]), "send was changed"


def reduce_naively(mine: Any, comm: Any, size: int, op: Any = np.add) -> None:
    """Compare the result of the naive algorithm, and count its messages on `comm`."""
    before, others = comm.messages_sent, comm.size - 1
    reduce_all(mine.naive, comm, size, op)
    sent = comm.messages_sent - before
    assert not size or sent == others, f"naive sent {sent} messages, expected {others}"


def reduce_by_ring(mine: Any, comm: Any, size: int, op: Any = np.add) -> None:
    """Compare the result of the ring, and look to whom it sends on `comm`."""
    reduce_all(mine.ring, comm, size, op)
    following = (comm.rank + 1) % comm.size
    sent_to = sorted(comm.sent_to)
    assert size < comm.size or sent_to == [following], (
        f"ring sent to the processes {sent_to}, expected [{following}]"
    )


@graded(1, processes=2, messages=True)
def naive_of_two(mine: Any, comm: Any) -> None:
    """The naive all-reduce sums the arrays of two processes, with one message of each."""
    reduce_naively(mine, comm, 10)


@graded(1, processes=2, messages=True)
def ring_of_two(mine: Any, comm: Any) -> None:
    """The ring sums the arrays of two processes."""
    reduce_by_ring(mine, comm, 10)


@graded(1, processes=4, messages=True)
def ring_of_four(mine: Any, comm: Any) -> None:
    """The ring sums the arrays of four processes, and each sends to the next only."""
    reduce_by_ring(mine, comm, 16)


@graded(1)
def bytes_of_two(mine: Any, _: Any) -> None:
    """With two processes both algorithms send as many bytes as the array has."""
    for name in ("naive", "ring"):
        sent = mine.bytes_each(name, 1000, 2)
        assert sent == 1000, f"bytes_each({name!r}, 1000, 2) is {sent}, expected 1000"
