"""A user's own all-reduce sums as ours do, and a wrong one ends the run with its file and line."""

import numpy as np
import pytest
import torch

from manyhands.comm.mpi import MPICommunicator
from manyhands.comm.own_allreduce_call import OwnAllReduce
from manyhands.errors import WorkerError


def gather_and_fold(send, recv, comm, op):
    """Right, but not in place: it writes into recv before it has read send."""
    recv[...] = 0
    for part in comm.allgather(send):
        recv[...] = op(recv, part)


def by_ring(send, recv, comm, op):
    recv[...], passed = send, send
    for _ in range(comm.size - 1):
        arriving = np.empty_like(send)
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        comm.Sendrecv(passed, after, 7, arriving, before, 7)
        passed = arriving
        recv[...] = op(recv, arriving)


def forgets_the_last_rank(send, recv, comm, op):
    recv[...] = np.sum(comm.allgather(send)[:-1], axis=0) if comm.size > 1 else send


def adds_its_rank(send, recv, comm, op):
    comm.Allreduce(send, recv)
    recv *= 1 + 1e-7 * comm.rank


def group_with(comm, function, name="mine.py:own"):
    group = MPICommunicator(comm.Dup())
    group.own[name] = OwnAllReduce(function, name)
    return group


@pytest.mark.parametrize("function", [gather_and_fold, by_ring])
def test_it_sums_in_place_to_what_mpi_gives(comm, function):
    if function is by_ring and comm.size > 2:
        return  # there its order differs from rank to rank, and with it the last bits
    group = group_with(comm, function)
    for length in (0, 1, 5, 1000):
        mine = torch.arange(length, dtype=torch.float32) + comm.rank
        expected = comm.size * np.arange(length) + sum(range(comm.size))
        for _ in range(2):
            vector = mine.clone()
            group.allreduce(vector, "mine.py:own")
            np.testing.assert_array_equal(vector.numpy(), expected)
    group.release()


def test_what_it_sends_is_metered(comm):
    if comm.size != 2:
        return
    group = group_with(comm, by_ring)
    group.allreduce(torch.ones(100), "mine.py:own")
    counted = group.meter.costs["allreduce mine.py:own"]
    assert (counted.messages, counted.bytes) == (1, 400)


def test_its_parts_of_the_group_know_it_too(comm):
    group = group_with(comm, gather_and_fold)
    part = group.split(comm.rank % 2)
    vector = torch.ones(3)
    part.allreduce(vector, "mine.py:own")
    assert vector.tolist() == [part.size] * 3
    group.release()


@pytest.mark.parametrize(
    ("function", "words"),
    [(forgets_the_last_rank, "gives a wrong sum"), (adds_its_rank, "gives ranks different bits")],
)
def test_a_wrong_result_is_refused_on_every_rank(comm, function, words):
    group = group_with(comm, function)
    vector = torch.linspace(1, 2, 50) * (comm.rank + 1)
    if comm.size == 1:
        group.allreduce(vector, "mine.py:own")
        return
    with pytest.raises(WorkerError, match=words) as caught:
        group.allreduce(vector, "mine.py:own")
    line = function.__code__.co_firstlineno
    assert f"test_own_allreduce.py, line {line})" in str(caught.value)


def test_numbers_that_are_not_finite_are_nobodys_fault(comm):
    group = group_with(comm, gather_and_fold)
    vector = torch.tensor([1.0, float("nan"), float("inf")])
    group.allreduce(vector, "mine.py:own")
    assert vector[0] == comm.size
    assert vector[1].isnan()
    assert vector[2].isinf()
