"""The exact messages and bytes of each algorithm, by array length and group size."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from manyhands import value_checks
from manyhands.allreduce.buffers import cuts
from manyhands.allreduce.to_power_of_two import core_size
from manyhands.allreduce.window import piece_bytes


class Cost(NamedTuple):
    """What one all-reduce costs; one entry per rank.

    Attributes:
        messages: Messages each rank sends.
        bytes: Bytes each rank sends in them.
        shared: Bytes each rank writes into shared memory.
        steps: How many messages follow one another on the longest path.
    """

    messages: tuple[int, ...]
    bytes: tuple[int, ...]
    shared: tuple[int, ...]
    steps: int

    @property
    def bytes_each(self) -> int:
        """The most bytes that one process sends."""
        return max(self.bytes)

    @property
    def bytes_all(self) -> int:
        """The bytes that all processes send together."""
        return sum(self.bytes)

    @property
    def messages_each(self) -> int:
        """The most messages that one process sends."""
        return max(self.messages)

    @property
    def messages_all(self) -> int:
        """The messages that all processes send together."""
        return sum(self.messages)


def cost(
    algorithm: str, length: int, size: int, *, itemsize: int = 4, group_size: int | None = None
) -> Cost:
    """Return the cost of `algorithm` on `length` items of `itemsize` bytes and `size` processes.

    `group_size` is that of `hierarchical`; None stands for all processes on one host. MPI's own
    all-reduce has no entry, since it keeps its choices to itself.

    >>> cost("naive", 1000, 4).bytes_each, cost("ring", 1000, 4).bytes_each
    (12000, 6000)
    """
    value_checks.at_least(0, length=length)
    value_checks.at_least(1, size=size, itemsize=itemsize, group_size=group_size)
    value_checks.one_of([*_COSTS, "hierarchical"], algorithm=algorithm)
    if algorithm == "hierarchical":
        return _hierarchical(length, size, itemsize, group_size or size)
    return _COSTS[algorithm](length, size, itemsize)


def _naive(length: int, size: int, itemsize: int) -> Cost:
    nbytes = (size - 1) * length * itemsize
    return Cost((size - 1,) * size, (nbytes,) * size, (0,) * size, min(1, size - 1))


def _allgather(length: int, size: int, itemsize: int) -> Cost:
    return _naive(length, size, itemsize)._replace(steps=size - 1)


def _ring(length: int, size: int, itemsize: int) -> Cost:
    if size == 1:
        return Cost((0,), (0,), (0,), 0)
    chunks = _pieces(length, size)
    steps = 2 * (size - 1)
    sent = tuple(
        (2 * length - chunks[(rank + 1) % size] - chunks[(rank + 2) % size]) * itemsize
        for rank in range(size)
    )
    return Cost((steps,) * size, sent, (0,) * size, steps)


def _recursive_doubling(length: int, size: int, itemsize: int) -> Cost:
    levels = core_size(size).bit_length() - 1
    core = [(levels, levels * length)] * core_size(size)
    return _folded(core, length, size, itemsize, levels)


def _rabenseifner(length: int, size: int, itemsize: int) -> Cost:
    bounds = cuts(length, core_size(size))
    levels = core_size(size).bit_length() - 1

    def span(number: int, width: int) -> int:
        start = number - number % width
        return bounds[start + width] - bounds[start]

    core = [
        (2 * levels, sum(span(n, 1 << k) + span(n ^ 1 << k, 1 << k) for k in range(levels)))
        for n in range(core_size(size))
    ]
    return _folded(core, length, size, itemsize, 2 * levels)


def _folded(core: list[tuple[int, int]], length: int, size: int, itemsize: int, steps: int) -> Cost:
    """Return the cost of (messages, items) by number in the core, with the extra ranks added."""
    extra = size - core_size(size)
    ranks: list[tuple[int, int]] = []
    for number, (messages, items) in enumerate(core):
        if number < extra:  # an extra rank hands over, its neighbour hands back
            ranks += [(1, length), (messages + 1, items + length)]
        else:
            ranks.append((messages, items))
    sent = tuple(items * itemsize for _, items in ranks)
    return Cost(
        tuple(messages for messages, _ in ranks), sent, (0,) * size, steps + (2 if extra else 0)
    )


def _shared_memory(length: int, size: int, itemsize: int) -> Cost:
    written = length * itemsize if size > 1 else 0
    return Cost((0,) * size, (0,) * size, (written,) * size, 0)


def _hierarchical(length: int, size: int, itemsize: int, group_size: int) -> Cost:
    groups = [min(group_size, size - start) for start in range(0, size, group_size)]
    lanes = min(groups)
    block = piece_bytes(lanes) // itemsize * lanes
    blocks = max(1, -(-length // block))
    messages, sent = [0] * size, [0] * size
    for turn in range(blocks):
        pieces = _pieces(min(block, length - turn * block), lanes)
        for lane, piece in enumerate(pieces):
            across = _ring(piece, len(groups), itemsize)
            for group in range(len(groups)):
                messages[group * group_size + lane] += across.messages[group]
                sent[group * group_size + lane] += across.bytes[group]
    steps = 2 * (len(groups) - 1) * blocks
    return Cost(tuple(messages), tuple(sent), (length * itemsize,) * size, steps)


def _pieces(length: int, parts: int) -> list[int]:
    bounds = cuts(length, parts)
    return [high - low for low, high in pairwise(bounds)]


_COSTS: dict[str, Callable[[int, int, int], Cost]] = {
    "naive": _naive,
    "allgather": _allgather,
    "ring": _ring,
    "recursive-doubling": _recursive_doubling,
    "rabenseifner": _rabenseifner,
    "shared-memory": _shared_memory,
}
