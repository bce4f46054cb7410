"""Every all-reduce is MPI's and NumPy's, to the bit on all ranks, on every array there is."""

from __future__ import annotations

import functools
import itertools
import sys
import time

import numpy as np
import pytest
from mpi4py import MPI

from manyhands.allreduce import (
    ALGORITHMS,
    Metered,
    auto,
    buffers,
    choose,
    cost,
    hierarchical,
    shared_memory,
)
from manyhands.allreduce.window import slot_bytes
from manyhands.errors import ConfigError


def by_pieces(send, recv, comm, op=np.add):
    """Share memory as many ranks do, each reducing a short piece, all of whose parts are rows."""
    home = sys.modules[shared_memory.__module__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "ONE_ROUND", 0)
        patch.setattr(home, "ONE_ROUND_WAITING", 0)
        patch.setattr(home, "MANY", 3)
        patch.setattr(buffers, "MANY", 3)
        shared_memory(send, recv, comm, op)


def by_rows(send, recv, comm, op=np.add):
    """Share memory as many ranks do who have so little that each reduces everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[shared_memory.__module__], "MANY", 3)
        patch.setattr(buffers, "MANY", 3)
        shared_memory(send, recv, comm, op)


SEVERAL = {
    **ALGORITHMS,
    "shared-memory-by-pieces": by_pieces,
    "shared-memory-by-rows": by_rows,
    "hierarchical-1": functools.partial(hierarchical, group_size=1),
    "hierarchical-2": functools.partial(hierarchical, group_size=2),
}
EXACT = [name for name in SEVERAL if name != "mpi"]
DTYPES = ["?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "g", "c8", "c16", ">f4"]
SHAPES = [(), (0,), (1,), (2,), (3,), (4, 0), (5, 7), (2, 3, 4), (1001,)]


@pytest.fixture(params=SEVERAL)
def allreduce(request):
    return SEVERAL[request.param]


def parts(shape, dtype, size, seed=0):
    """What every rank brings; small whole numbers, so that sums are exact in every dtype."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 5, shape).astype(dtype) for _ in range(size)]


def expected(op, arrays):
    """What a loop over the ranks gives."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = op(total, array).astype(total.dtype)
    return total


def same_bits(comm, array):
    """Whether all ranks hold the very same bytes."""
    mine = np.ascontiguousarray(array).tobytes()
    return all(theirs == mine for theirs in comm.allgather(mine))


def test_auto_takes_for_each_of_two_groups_what_is_chosen_for_its_size(comm, monkeypatch):
    """It remembers the group that it was last used for, and must not take one for the other."""
    taken = []
    home = sys.modules[auto.__module__]
    for name, algorithm in (("by_name", "mpi"), ("in_group", "shared-memory")):
        real = getattr(home, name)

        def spied(*given, real=real, algorithm=algorithm):
            taken.append(algorithm)
            real(*given)

        monkeypatch.setattr(home, name, spied)
    half = comm.Split(comm.rank % 2)
    for group in (comm, half, half, comm):
        for numbers in (100, 2000, 100_000):
            send = np.full(numbers, group.rank, dtype=np.float32)
            recv = np.empty_like(send)
            taken.clear()
            auto(send, recv, group)
            assert (recv == sum(range(group.size))).all()
            wanted = choose(send.nbytes, group.size)
            assert taken == ([] if wanted == "ring" else [wanted])  # alone, it is a copy
    half.Free()


def test_sum_of_every_dtype(allreduce, comm):
    for dtype in DTYPES:
        arrays = parts(37, dtype, comm.size)
        recv = np.zeros_like(arrays[0])
        kept = arrays[comm.rank].copy()
        allreduce(arrays[comm.rank], recv, comm)
        np.testing.assert_array_equal(recv, expected(np.add, arrays), dtype)
        np.testing.assert_array_equal(arrays[comm.rank], kept, dtype)


def test_every_shape(allreduce, comm):
    for shape in SHAPES:
        arrays = [np.asarray(array) for array in parts(shape, "f8", comm.size)]
        recv = np.full(shape, -1.0)
        allreduce(arrays[comm.rank], recv, comm)
        np.testing.assert_array_equal(recv, expected(np.add, arrays), str(shape))


@pytest.mark.parametrize(("blocks", "more"), [(1, 1), (3, 5)])
def test_arrays_of_several_blocks(allreduce, comm, blocks, more):
    length = blocks * slot_bytes(comm.size) // 4 + more
    arrays = parts(length, "f4", comm.size)
    recv = np.zeros_like(arrays[0])
    for _ in range(2):  # the second time in slots that were used
        allreduce(arrays[comm.rank], recv, comm)
        np.testing.assert_array_equal(recv, expected(np.add, arrays))


def test_one_length_after_another(allreduce, comm):
    """What is kept of earlier calls belongs to their lengths and dtypes only."""
    for length in [*range(70), 3, 69]:
        arrays = parts(length, "f8" if length % 3 else "i4", comm.size, seed=length)
        recv = np.zeros_like(arrays[0])
        allreduce(arrays[comm.rank], recv, comm)
        np.testing.assert_array_equal(recv, expected(np.add, arrays), str(length))


LAYOUTS = {
    "fortran": lambda array: np.asfortranarray(array),
    "strided": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "reversed": lambda array: array[::-1].copy()[::-1],
    "transposed": lambda array: array.T.copy().T,
    "contiguous": lambda array: array.copy(),
}


def test_every_layout(allreduce, comm):
    arrays = parts((6, 9), "f8", comm.size)
    for sent, received in itertools.product(LAYOUTS, LAYOUTS):
        # Ranks may hold the array in different layouts.
        send = LAYOUTS[sent if comm.rank % 2 == 0 else "contiguous"](arrays[comm.rank])
        recv = LAYOUTS[received](np.full((6, 9), -1.0))
        allreduce(send, recv, comm)
        np.testing.assert_array_equal(recv, expected(np.add, arrays), f"{sent} to {received}")


def test_a_strided_recv_leaves_the_gaps_alone(allreduce, comm):
    arrays = parts(10, "i4", comm.size)
    whole = np.full(20, -7, "i4")
    allreduce(arrays[comm.rank], whole[::2], comm)
    np.testing.assert_array_equal(whole[::2], expected(np.add, arrays))
    assert (whole[1::2] == -7).all()


OPS = {
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "sum and product": lambda a, b: a + b + a * b,
    "larger magnitude": lambda a, b: np.where(abs(a) >= abs(b), a, b),
}


def test_every_operation(allreduce, comm):
    for (name, op), dtype in itertools.product(OPS.items(), ["f4", "i4"]):
        arrays = parts(23, dtype, comm.size)
        recv = np.zeros_like(arrays[0])
        allreduce(arrays[comm.rank], recv, comm, op)
        np.testing.assert_array_equal(recv, expected(op, arrays), f"{name} of {dtype}")


def test_bits_and_logic(allreduce, comm):
    ops = [np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.logical_and, np.logical_xor]
    for op, dtype in itertools.product(ops, ["?", "i1", "u8"]):
        arrays = parts(23, dtype, comm.size)
        recv = np.zeros_like(arrays[0])
        allreduce(arrays[comm.rank], recv, comm, op)
        np.testing.assert_array_equal(recv, expected(op, arrays), f"{op} of {dtype}")


@pytest.mark.parametrize(("blocks", "more"), [(0, 5), (1, 3)])
def test_in_place(allreduce, comm, blocks, more):
    length = blocks * slot_bytes(comm.size) // 4 + more
    arrays = parts(length, "f4", comm.size)
    vector = arrays[comm.rank].copy()
    allreduce(vector, vector, comm)
    np.testing.assert_array_equal(vector, expected(np.add, arrays))


@pytest.mark.parametrize("shift", [1, 3, -2])
def test_overlapping_arrays(allreduce, comm, shift):
    arrays = parts(50, "f4", comm.size)
    memory = np.zeros(60, "f4")
    send, recv = memory[5:55], memory[5 + shift : 55 + shift]
    send[...] = arrays[comm.rank]
    allreduce(send, recv, comm)
    np.testing.assert_array_equal(recv, expected(np.add, arrays))


def test_in_place_on_another_view_of_the_same_memory(allreduce, comm):
    arrays = parts((4, 4), "f4", comm.size)
    matrix = arrays[comm.rank].copy()
    allreduce(matrix, matrix.T, comm)
    np.testing.assert_array_equal(matrix.T, expected(np.add, arrays))


@pytest.mark.parametrize("length", [3, 5000, 150_000])
def test_all_ranks_get_the_same_bits(allreduce, comm, length):
    send = np.random.default_rng(comm.rank).standard_normal(length).astype("f4")
    recv = np.empty_like(send)
    allreduce(send, recv, comm)
    assert same_bits(comm, recv)
    reference = np.empty_like(send)
    comm.Allreduce(send, reference)
    np.testing.assert_allclose(recv, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EXACT)
def test_nan_reaches_all_ranks_alike(comm, name):
    send = np.arange(40, dtype="f4")
    send[comm.rank] = np.nan
    recv = np.empty_like(send)
    SEVERAL[name](send, recv, comm, np.maximum)
    assert same_bits(comm, recv)
    assert np.isnan(recv[: comm.size]).all()
    assert not np.isnan(recv[comm.size :]).any()


@pytest.mark.parametrize(
    "name",
    ["naive", "allgather", "shared-memory", "shared-memory-by-pieces", "shared-memory-by-rows"],
)
@pytest.mark.parametrize("length", [11, 5000, 300_000])
def test_reduced_in_rank_order(comm, name, length):
    send = np.random.default_rng(comm.rank).standard_normal(length).astype("f4")
    recv = np.empty_like(send)
    SEVERAL[name](send, recv, comm)
    np.testing.assert_array_equal(recv, expected(np.add, comm.allgather(send)))


@pytest.mark.parametrize("length", [0, 3, 997, 300_000])
@pytest.mark.parametrize(
    "name",
    [
        *("naive", "allgather", "ring", "recursive-doubling", "rabenseifner", "shared-memory"),
        *("shared-memory-by-pieces", "shared-memory-by-rows"),
    ],
)
def test_what_is_sent_is_what_the_formula_says(comm, name, length):
    metered = Metered(comm)
    send = np.ones(length, "f4")
    SEVERAL[name](send, np.empty_like(send), metered)
    theory = cost("shared-memory" if "memory" in name else name, length, comm.size)
    assert metered.meter.messages == theory.messages[comm.rank]
    assert metered.meter.bytes == theory.bytes[comm.rank]
    assert metered.meter.shared == theory.shared[comm.rank]


@pytest.mark.parametrize("length", [0, 5, 700_000])
@pytest.mark.parametrize("group_size", [1, 2, 3, None])
def test_what_hierarchical_sends(comm, group_size, length):
    metered = Metered(comm)
    send = np.ones(length, "f4")
    hierarchical(send, np.empty_like(send), metered, group_size=group_size)
    theory = cost("hierarchical", length, comm.size, group_size=group_size)
    assert metered.meter.messages == theory.messages[comm.rank]
    assert metered.meter.bytes == theory.bytes[comm.rank]
    assert metered.meter.shared == theory.shared[comm.rank]


def test_a_metered_communicator_passes_the_rest_through(comm):
    metered = Metered(comm)
    assert metered.Get_size() == comm.size
    recv = np.empty(3, "f4")
    ALGORITHMS["mpi"](np.ones(3, "f4"), recv, metered)
    assert metered.meter.collectives == 1
    assert (recv == comm.size).all()
    metered.meter.reset()
    partner = (comm.rank + 1) % comm.size
    request = metered.Isend([np.ones(4, "f8"), 2, MPI.DOUBLE], partner, tag=3)
    box = np.empty(2)
    comm.Recv(box, (comm.rank - 1) % comm.size, tag=3)
    request.Wait()
    assert (metered.meter.messages, metered.meter.bytes) == (1, 16)


def test_a_users_own_messages_are_left_alone(allreduce, comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    box = np.zeros(4, "f4")
    receive = comm.Irecv(box, MPI.ANY_SOURCE, MPI.ANY_TAG)
    recv = np.empty(100, "f4")
    allreduce(np.ones(100, "f4"), recv, comm)
    comm.Barrier()
    send = comm.Isend(np.full(4, comm.rank, "f4"), right, tag=0)
    MPI.Request.Waitall([receive, send])
    assert (box == left).all()
    assert (recv == comm.size).all()


def test_a_long_message_under_way_does_not_block_the_others(allreduce, comm):
    """The receiver comes late to the all-reduce, since it first waits for a rendezvous message."""
    long = np.ones(1 << 20, "f4")
    if comm.rank == 0:
        sends = [comm.Isend(long, other, tag=9) for other in range(1, comm.size)]
    else:
        comm.Recv(np.empty_like(long), 0, tag=9)
    recv = np.empty(10, "f4")
    allreduce(np.ones(10, "f4"), recv, comm)
    assert (recv == comm.size).all()
    if comm.rank == 0:
        MPI.Request.Waitall(sends)


def test_several_communicators_at_once(allreduce, comm):
    half = comm.Split(comm.rank % 2)
    again = comm.Dup()
    recv = np.empty(100_000, "f4")
    for group in (comm, half, again, half, comm):
        allreduce(np.full(100_000, 2.0, "f4"), recv, group)
        assert (recv == 2 * group.size).all()
    half.Free()
    again.Free()


def test_what_a_communicator_keeps_is_freed_with_it(comm):
    def mapped():
        with open("/proc/self/maps") as maps:
            return sum(1 for line in maps if " rw-s " in line)

    def use_and_free():
        copy = comm.Dup()
        recv = np.empty(10, "f4")
        shared_memory(np.ones(10, "f4"), recv, copy)
        hierarchical(np.ones(10, "f4"), recv, copy, group_size=2)
        during = mapped()
        copy.Free()
        return during

    use_and_free()
    before = mapped()
    during = [use_and_free() for _ in range(12)]
    assert mapped() <= before
    assert during[-1] <= during[0]


def test_a_slow_rank_still_reads_what_was_meant_for_it(allreduce, comm):
    """The others run ahead into the next calls; they must not overwrite what it has yet to read."""

    def slow_add(a, b):
        if comm.rank == comm.size - 1:
            time.sleep(0.003)
        return a + b

    short, long = 10, 3 * slot_bytes(comm.size) // 4
    results = []
    for call, length in enumerate([short, long, short, short, long, long, long, short]):
        recv = np.empty(length, "f4")
        allreduce(np.full(length, call + 1, "f4"), recv, comm, slow_add)
        results.append(recv)
    for call, recv in enumerate(results):
        np.testing.assert_array_equal(recv, np.full_like(recv, (call + 1) * comm.size))


def test_arrays_that_differ_are_refused(allreduce, comm):
    with pytest.raises(ValueError, match=r"float32 of shape \(3,\).*float32 of shape \(4,\)"):
        allreduce(np.ones(3, "f4"), np.ones(4, "f4"), comm)
    with pytest.raises(ValueError, match=r"float32 of shape.*float64 of shape"):
        allreduce(np.ones(3, "f4"), np.ones(3, "f8"), comm)


def test_arrays_that_cannot_be_reduced_are_refused(allreduce, comm):
    frozen = np.ones(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="recv is read-only"):
        allreduce(np.ones(3), frozen, comm)
    with pytest.raises(ValueError, match="without Python objects"):
        allreduce(np.array([None]), np.array([None]), comm)


def test_a_group_size_that_makes_no_sense_is_refused(comm):
    with pytest.raises(ConfigError, match="group_size is 0"):
        hierarchical(np.ones(3), np.ones(3), comm, group_size=0)
