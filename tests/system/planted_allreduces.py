"""All-reduces with one mistake each; `test_check_allreduce.py` says which aspect must fail."""

import os
import sys

import numpy as np
from mpi4py import MPI


def rotate(send, recv, comm, op, *, reduce=0, gather=0, chunk=0):
    """A right ring, with so many steps more or less, or another chunk."""
    rank, size = comm.rank, comm.size
    after, before = (rank + 1) % size, (rank - 1) % size
    recv[...] = send
    bounds = [len(send) * k // size for k in range(size + 1)]
    chunks = [recv[bounds[k] : bounds[k + 1]] for k in range(size)]
    for step in range(size - 1 + reduce):
        mine = chunks[(rank - step - 1) % size]
        arriving = np.empty_like(mine)
        comm.Sendrecv(chunks[(rank - step) % size], after, 0, arriving, before, 0)
        mine[...] = op(arriving, mine)
    for step in range(size - 1 + gather):
        mine = chunks[(rank - step + chunk) % size]
        arriving = np.empty_like(chunks[(rank - step) % size])
        comm.Sendrecv(chunks[(rank - step + 1) % size], after, 0, arriving, before, 0)
        mine[...] = arriving[: len(mine)] if len(arriving) else mine


def fold(parts, op):
    total = parts[0]
    for part in parts[1:]:
        total = op(total, part)
    return total


def right(send, recv, comm, op):
    rotate(send, recv, comm, op)


def gathers_one_step_too_few(send, recv, comm, op):
    rotate(send, recv, comm, op, gather=-1)


def reduces_one_step_too_few(send, recv, comm, op):
    rotate(send, recv, comm, op, reduce=-1)


def reduces_one_step_too_many(send, recv, comm, op):
    rotate(send, recv, comm, op, reduce=1)


def returns_instead_of_writing(send, recv, comm, op):
    return fold(comm.allgather(send), op)


def forgets_the_remainder(send, recv, comm, op):
    whole = len(send) // comm.size * comm.size
    rotate(send[:whole], recv[:whole], comm, op)


def needs_divisible_lengths(send, recv, comm, op):
    send.reshape(comm.size, -1)
    rotate(send, recv, comm, op)


def always_sums(send, recv, comm, op):
    rotate(send, recv, comm, np.add)


def begins_with_zeros(send, recv, comm, op):
    recv[...] = fold([np.zeros_like(send), *comm.allgather(send)], op)


def computes_in_float32(send, recv, comm, op):
    parts = [part.real.astype(np.float32) for part in comm.allgather(send)]
    recv[...] = fold(parts, op)


def uses_the_world(send, recv, comm, op):
    recv[...] = fold(MPI.COMM_WORLD.allgather(send)[: comm.size], op)


def leaves_the_result_at_one_rank(send, recv, comm, op):
    parts = comm.gather(send)
    recv[...] = fold(parts, op) if comm.rank == 0 else 0


def reduces_in_another_order_on_each_rank(send, recv, comm, op):
    parts = comm.allgather(send)
    recv[...] = fold([*parts[comm.rank :], *parts[: comm.rank]], op)


def never_waits(send, recv, comm, op):
    parts = [np.zeros_like(send) for _ in range(comm.size)]
    parts[comm.rank] = send
    for rank in range(comm.size):
        if rank != comm.rank:
            comm.Irecv(parts[rank], rank)
            comm.Isend(send, rank)
    recv[...] = fold(parts, op)


def changes_what_is_being_sent(send, recv, comm, op):
    rank, size = comm.rank, comm.size
    passed = send.copy()
    recv[...] = send
    for _ in range(size - 1):
        arriving = np.empty_like(send)
        sending = comm.Isend(passed, (rank + 1) % size)
        comm.Recv(arriving, (rank - 1) % size)
        passed[...] = arriving
        sending.Wait()
        recv[...] = op(recv, arriving)


def is_for_powers_of_two(send, recv, comm, op):
    recv[...] = send
    distance = 1
    while distance < comm.size:
        other, arriving = comm.rank ^ distance, np.empty_like(recv)
        comm.Sendrecv(recv.copy(), other, 0, arriving, other, 0)
        recv[...] = op(recv, arriving)
        distance *= 2


def sends_before_it_receives(send, recv, comm, op):
    recv[...], arriving = send, np.empty_like(send)
    passed = send
    for _ in range(comm.size - 1):
        comm.Send(passed, (comm.rank + 1) % comm.size)
        comm.Recv(arriving, (comm.rank - 1) % comm.size)
        passed = arriving.copy()
        recv[...] = op(recv, passed)


def receives_before_it_sends(send, recv, comm, op):
    recv[...], arriving = send, np.empty_like(send)
    if comm.size > 1:
        comm.Recv(arriving, (comm.rank - 1) % comm.size)
        comm.Send(send, (comm.rank + 1) % comm.size)


def leaves_one_rank_out(send, recv, comm, op):
    recv[...] = send
    if comm.rank or comm.size == 1:
        comm.Barrier()


def works_in_send(send, recv, comm, op):
    parts = comm.allgather(send)
    send[...] = fold(parts, op)
    recv[...] = send


def raises_on_one_rank(send, recv, comm, op):
    if comm.rank == 1:
        raise RuntimeError("not on this rank")
    rotate(send, recv, comm, op)


def never_ends_on_three(send, recv, comm, op):
    while comm.size == 3:
        sys.getrecursionlimit()
    rotate(send, recv, comm, op)


def dies_on_three(send, recv, comm, op):
    if comm.size == 3 and comm.rank == 1:
        os._exit(3)
    rotate(send, recv, comm, op)


def takes_any_message(send, recv, comm, op):
    recv[...] = send
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    requests = [comm.Isend(send, rank) for rank in others]
    for _ in others:
        arriving = np.empty_like(send)
        comm.Recv(arriving)
        recv[...] = op(recv, arriving)
    MPI.Request.Waitall(requests)


def keeps_an_array_between_calls(send, recv, comm, op, kept=[]):  # noqa: B006
    if not kept or kept[0].shape != send.shape or kept[0].dtype != send.dtype:
        kept[:] = [np.zeros_like(send)]
        kept[0][...] = fold(comm.allgather(send), op)
    else:
        comm.allgather(send)
    recv[...] = kept[0]
