"""The pure parts of the all-reduces: costs, choices, cuts and the benchmark's tables."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from manyhands.allreduce import ALGORITHMS, choose, cost
from manyhands.allreduce.buffers import combine, cuts, flatten
from manyhands.allreduce.mpi import native
from manyhands.allreduce.window import slot_bytes
from manyhands.errors import ConfigError
from manyhands.experiments import allreduce_benchmark
from manyhands.experiments.allreduce_figure import draw_figure

SIZES = [1, 2, 3, 4, 5, 7, 8, 16]
MESSAGES = ["naive", "allgather", "ring", "recursive-doubling", "rabenseifner"]


@pytest.mark.parametrize("size", SIZES)
def test_naive_and_ring_as_in_the_textbooks(size):
    n = 1000 * size * 4
    naive, ring = cost("naive", 1000 * size, size), cost("ring", 1000 * size, size)
    assert naive.bytes == ((size - 1) * n,) * size
    assert naive.bytes_all == size * (size - 1) * n
    assert ring.bytes == (2 * (size - 1) * n // size,) * size
    assert ring.bytes_all == 2 * (size - 1) * n
    assert ring.steps == ring.messages_each == 2 * (size - 1)
    gathered = cost("allgather", 1000 * size, size)
    assert gathered[:3] == naive[:3]
    assert gathered.steps == size - 1


@pytest.mark.parametrize("power", [0, 1, 2, 3, 4])
def test_powers_of_two(power):
    size, n = 2**power, 4096 * 4
    doubling, halving = (cost(name, 4096, size) for name in ("recursive-doubling", "rabenseifner"))
    assert doubling.bytes == (power * n,) * size
    assert doubling.steps == power
    assert halving.bytes == (2 * n * (size - 1) // size,) * size
    assert halving.steps == 2 * power


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [0, 1, 3, 997])
def test_no_message_algorithm_sends_less_in_all_than_the_bound(size, length):
    for name in MESSAGES:
        found = cost(name, length, size)
        assert len(found.bytes) == len(found.messages) == size
        assert found.bytes_all >= 2 * (size - 1) * length * 4 or name == "recursive-doubling"
    assert cost("ring", length, size).bytes_all == 2 * (size - 1) * length * 4


def test_a_hierarchy_of_one_group_sends_nothing_and_of_single_ranks_is_a_ring():
    assert cost("hierarchical", 5000, 6).messages_all == 0
    ring = cost("ring", 5000, 6)
    assert cost("hierarchical", 5000, 6, group_size=1).bytes == ring.bytes
    assert cost("hierarchical", 6000, 6, group_size=3).bytes_all == 2 * (2 - 1) * 6000 * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rings", 1, 1), "Did you mean 'ring'"),
        (("mpi", 1, 1), "algorithm is 'mpi'"),
        (("ring", -1, 1), "length is -1"),
        (("ring", 1, 0), "size is 0"),
    ],
)
def test_costs_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        cost(*arguments)


def test_choices():
    assert choose(1 << 26, 1) == "ring"
    assert choose(100, 1) == choose(100, 2) == choose(100, 64) == "mpi"
    assert choose(100, 1, native=False) == "ring"
    assert choose(100, 2, native=False) == "shared-memory"
    assert choose(1 << 20, 2) == choose(4 << 10, 4) == choose(32 << 10, 16) == "shared-memory"
    assert choose(9 << 10, 5) == choose(31 << 10, 16) == "mpi"
    assert choose(100, 8, per_host=4) == "mpi"
    assert choose(100, 8, per_host=4, native=False) == "recursive-doubling"
    assert choose(1 << 20, 8, per_host=4) == "hierarchical"
    assert choose(1 << 20, 8, per_host=1) == "mpi"
    assert choose(1 << 20, 8, per_host=1, native=False) == "ring"


def test_two_have_wide_windows_where_that_is_worth_it_and_there_is_room():
    narrow = slot_bytes(3, machine="aarch64")
    assert slot_bytes(2, machine="aarch64") > narrow
    assert slot_bytes(2, free=64e6, machine="aarch64") == slot_bytes(2, machine="x86_64") == narrow


def test_every_choice_is_an_algorithm():
    for nbytes in (1, 1 << 30):
        for size in (1, 2, 64):
            for per_host in (1, 2, None):
                for own in (True, False):
                    chosen = choose(nbytes, size, per_host=per_host, native=own)
                    assert chosen in set(ALGORITHMS) - {"auto"}


def test_mpi_is_trusted_only_with_what_it_computes_as_numpy_does():
    assert native(np.add, np.dtype("f4")) == "SUM"
    assert native(np.add, np.dtype("?")) == "LOR"
    assert native(np.maximum, np.dtype("i8")) == "MAX"
    assert native(np.maximum, np.dtype("f4")) is None  # NaN
    assert native(np.multiply, np.dtype("c8")) is None  # a·b is not b·a to the bit
    assert native(np.add, np.dtype("f2")) is None
    assert native(np.add, np.dtype("f4").newbyteorder()) is None
    assert native(lambda a, b: a + b, np.dtype("f4")) is None


def test_cuts_are_near_equal():
    for length in (0, 1, 5, 12, 1000):
        for parts in (1, 2, 3, 7):
            widths = np.diff(cuts(length, parts))
            assert widths.sum() == length
            assert widths.max() - widths.min() <= 1


def test_flatten_copies_only_what_it_must():
    a, b = np.ones((3, 4)), np.zeros((3, 4))
    x, y = flatten(a, b)
    assert np.shares_memory(x, a)
    assert np.shares_memory(y, b)
    x, y = flatten(a, a)
    assert x is y
    x, y = flatten(a[::2], b[::2])
    assert x.flags.c_contiguous
    assert not np.shares_memory(x, a)
    memory = np.arange(10.0)
    x, y = flatten(memory[:8], memory[2:])
    assert not np.shares_memory(x, y)


def test_combine_keeps_the_order():
    out = np.empty(1)
    combine(lambda a, b: 10 * a + b, [np.array([float(i)]) for i in (1, 2, 3)], out)
    assert out[0] == 123


def combined(op, rows):
    """What the rows of one array give, and what the same arrays give one after the other."""
    out, expected = np.empty_like(rows[0]), np.empty_like(rows[0])
    combine(op, rows, out)
    combine(op, list(rows), expected)
    return bits(out), bits(expected)


def bits(array):
    """The bytes of an array; an x86's long doubles have some behind them that mean nothing."""
    if array.dtype.char == "g" and np.finfo("g").nmant == 63:
        array = array.view(np.uint8).reshape(-1, array.itemsize)[:, :10]
    return array.tobytes()


@pytest.mark.parametrize("op", [np.add, np.multiply, np.maximum, np.minimum, np.subtract])
@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "f2", "f4", "f8", "g", "c8", ">f4"])
@pytest.mark.parametrize("width", [1, 2, 3, 100, 2000, 20_000])
def test_rows_combined_in_one_call_have_the_bits_of_one_after_the_other(op, dtype, width):
    rng = np.random.default_rng(0)
    for _ in range(20 if width < 10 else 1):  # of few sums, most do not depend on the order
        if np.dtype(dtype).kind in "iu":
            memory = rng.integers(0, 256, (17, 2 * width)).astype(dtype)  # too large to multiply
        else:
            memory = rng.uniform(0.5, 1.6, (17, 2 * width)).astype(dtype)
        rows = memory[:, :width]  # as in a window: with something in between
        found, expected = combined(op, rows)
        assert found == expected


def test_the_sum_of_negative_zeros_is_one_of_them_and_nothing_hides_a_nan():
    rows = np.full((17, 4), -0.0, np.float32)
    rows[5, 2] = np.nan
    found, expected = combined(np.add, rows)
    assert found == expected
    total = np.frombuffer(found, np.float32)
    assert np.signbit(total[:2]).all()
    assert np.isnan(total[2])


def test_importing_the_all_reduces_starts_no_mpi():
    code = "import sys, manyhands.allreduce; sys.exit('mpi4py.MPI' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_sizes_are_read():
    assert allreduce_benchmark.parse_sizes("1KB..64KB") == [1 << 10, 1 << 12, 1 << 14, 1 << 16]
    assert allreduce_benchmark.parse_sizes("1KB..5KB") == [1 << 10, 1 << 12, 5 << 10]
    assert allreduce_benchmark.parse_sizes("100,2MB") == [100, 2 << 20]
    for wrong in ("", "1XB", "4KB..1KB", "0", "-1KB"):
        with pytest.raises(ConfigError, match="sizes"):
            allreduce_benchmark.parse_sizes(wrong)


def record(**changes):
    point = {
        "workers": 2, "algorithm": "ring", "bytes": 1024, "microseconds": 10.0, "spread": 1.0,
        "bandwidth": 0.1, "bytes_sent_each": 1024, "bytes_sent_all": 2048, "messages": 2,
        "shared_bytes_each": 0, "theory_bytes_each": 1024, "correct": True,
    }  # fmt: skip
    return {**point, **changes}


def test_the_table_marks_what_is_wrong_and_what_is_missing():
    records = [
        record(),
        record(algorithm="naive", microseconds=5.0),
        record(bytes=4096, correct=False),
    ]
    lines = allreduce_benchmark.format_table(records).splitlines()
    assert lines[0].split() == ["workers", "bytes", "ring", "naive"]
    assert lines[1].split() == ["2", "1", "KB", "10.0", "5.0"]
    assert lines[2].split() == ["2", "4", "KB", "WRONG", "–"]


def test_the_figure_is_drawn(tmp_path):
    path = tmp_path / "figure.svg"
    draw_figure([record(), record(bytes=4096), record(workers=4)], path)
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize("sent", [0, None])  # in shared memory; by MPI, which does not tell
def test_the_figure_is_drawn_where_no_message_can_be_counted(tmp_path, sent):
    path = tmp_path / "figure.svg"
    draw_figure([record(bytes_sent_each=sent), record(bytes=4096, bytes_sent_each=sent)], path)
    assert "no messages that could be counted" in path.read_text()
