"""The exact messages and bytes of each compressed all-reduce, beside those of `allreduce.cost`."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.allreduce.buffers import cuts
from manyhands.allreduce.cost import Cost, cost
from manyhands.comm.compression.codec import Codec
from manyhands.comm.compression.powersgd import split_blocks
from manyhands.comm.compression.topk import count_kept


def coded_cost(codec: Codec, length: int, size: int) -> Cost:
    """Return the cost of `Coded` on so many numbers and workers."""
    bounds = cuts(length, size)
    coded = [codec.nbytes(bounds[j + 1] - bounds[j]) for j in range(size)]
    sent = tuple(sum(coded) + (size - 2) * coded[r] if size > 1 else 0 for r in range(size))
    return Cost((2 * (size - 1),) * size, sent, (0,) * size, 2 if size > 1 else 0)


def topk_cost(fraction: float, length: int, size: int) -> Cost:
    """Return the cost of `TopK`."""
    sent = (size - 1) * 8 * count_kept(fraction, length)
    return Cost((size - 1,) * size, (sent,) * size, (0,) * size, min(1, size - 1))


def powersgd_cost(
    rank: int, shapes: Sequence[Sequence[int]], size: int, algorithm: str = "ring"
) -> Cost:
    """Return the cost of `PowerSGD` whose two all-reduces are by `algorithm`."""
    matrices, exact = split_blocks(shapes, rank)
    first = sum(rank * block.n for block in matrices) + sum(p.stop - p.start for p in exact)
    second = sum(rank * block.m for block in matrices)
    both = [cost(algorithm, length, size) for length in (first, second) if length]
    return Cost(
        tuple(map(sum, zip(*(one.messages for one in both), strict=True))),
        tuple(map(sum, zip(*(one.bytes for one in both), strict=True))),
        tuple(map(sum, zip(*(one.shared for one in both), strict=True))),
        sum(one.steps for one in both),
    )
