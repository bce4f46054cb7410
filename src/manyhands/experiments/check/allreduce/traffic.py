"""Which known all-reduce sends what was counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from manyhands.allreduce.cost import cost


@dataclass(frozen=True)
class Traffic:
    """What the processes send in one all-reduce.

    Attributes:
        messages: The most messages that one process sends.
        bytes: The most bytes that one process sends.
        bytes_all: The bytes that all send together.
        peers: The most processes that one process sends to.
    """

    messages: int
    bytes: int
    bytes_all: int
    peers: int


def _of_ours(name: str, peers: Callable[[int], int]) -> Callable[[int, int], Traffic]:
    def known(length: int, size: int) -> Traffic:
        sent = cost(name, length, size)
        return Traffic(sent.messages_each, sent.bytes_each, sent.bytes_all, peers(size))

    return known


def _log(size: int) -> int:
    return max(0, size - 1).bit_length()


def _root(length: int, size: int) -> Traffic:
    nbytes = 4 * length * (size - 1)
    return Traffic(size - 1, nbytes, 2 * nbytes, size - 1)


def _tree(length: int, size: int) -> Traffic:
    nbytes = 4 * length * _log(size)
    return Traffic(_log(size), nbytes, 8 * length * (size - 1), _log(size))


def _chunks_to_owners(length: int, size: int) -> Traffic:
    ring = cost("ring", length, size)
    return Traffic(ring.messages_each, ring.bytes_each, ring.bytes_all, size - 1)


_KNOWN: Mapping[str, Callable[[int, int], Traffic]] = {
    "naive: everything to everyone": _of_ours("naive", lambda size: size - 1),
    "all-gather round a ring": _of_ours("allgather", lambda size: min(1, size - 1)),
    "ring: reduce-scatter, then all-gather": _of_ours("ring", lambda size: min(1, size - 1)),
    "direct reduce-scatter, then all-gather": _chunks_to_owners,
    "recursive doubling": _of_ours("recursive-doubling", _log),
    "Rabenseifner's": _of_ours("rabenseifner", _log),
    "gather at one rank, then broadcast": _root,
    "binomial tree to one rank and back": _tree,
}
NEAR = 0.35  # mean difference of the logarithms up to which an algorithm is called like it


def find_closest(measured: Mapping[int, Traffic], length: int) -> tuple[str, bool] | None:
    """Return the known algorithm that sends most alike, and whether exactly so.

    Args:
        measured: What was counted, by the number of processes; float32 items.
        length: The items of the array.

    Returns:
        None where nothing was sent, or nothing known is like it.
    """
    groups = {size: row for size, row in measured.items() if size > 1}
    if not groups or not any(row.messages for row in groups.values()):
        return None
    distances = {}
    for name, known in _KNOWN.items():
        pairs = [(row, known(length, size)) for size, row in groups.items()]
        distances[name] = sum(_distance(a, b) for a, b in pairs) / len(pairs)
    best = min(distances, key=lambda name: distances[name])
    return (best, distances[best] == 0) if distances[best] <= NEAR else None


def _distance(a: Traffic, b: Traffic) -> float:
    pairs = ((a.messages, b.messages), (a.bytes, b.bytes), (a.bytes_all, b.bytes_all))
    apart = sum(abs(math.log((1 + x) / (1 + y))) for x, y in pairs)
    return apart + abs(math.log((1 + a.peers) / (1 + b.peers)))


def compare(size: int, row: Traffic, length: int) -> dict[str, Any]:
    """Return a row of the table: what was counted beside two algorithms' theory."""
    naive, ring = cost("naive", length, size), cost("ring", length, size)
    return {
        "workers": size,
        "array_bytes": 4 * length,
        "messages_each": row.messages,
        "bytes_each": row.bytes,
        "bytes_all": row.bytes_all,
        "naive_messages_each": naive.messages_each,
        "naive_bytes_each": naive.bytes_each,
        "naive_bytes_all": naive.bytes_all,
        "ring_messages_each": ring.messages_each,
        "ring_bytes_each": ring.bytes_each,
        "ring_bytes_all": ring.bytes_all,
    }
