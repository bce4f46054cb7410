"""Reduces a group to a power of two: each extra rank hands its part to a neighbour.

Of the first 2 (P - Q) ranks, Q being the largest power of two up to P, each even one sends its
vector to the odd one after it, sits out, and receives the result at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from manyhands.allreduce.buffers import Array, Op, apply, as_bytes

if TYPE_CHECKING:
    from manyhands.allreduce.hidden_communicator import Channel


def core_size(size: int) -> int:
    """Return the largest power of two up to `size`."""
    return 1 << (size.bit_length() - 1)


def fold(x: Array, y: Array, group: Channel, op: Op) -> int | None:
    """Fill `y` with this rank's contribution; return its number in the core, None outside."""
    extra = group.size - core_size(group.size)
    if group.rank >= 2 * extra:
        y[...] = x
        return group.rank - extra
    if group.rank % 2 == 0:
        group.wait(group.comm.Isend(as_bytes(x), group.rank + 1))
        return None
    incoming = np.empty_like(x)
    group.wait(group.comm.Irecv(as_bytes(incoming), group.rank - 1))
    apply(op, incoming, x, out=y)
    return group.rank // 2


def unfold(y: Array, group: Channel) -> None:
    """Send the result to the ranks outside the core."""
    extra = group.size - core_size(group.size)
    if group.rank >= 2 * extra:
        return
    if group.rank % 2 == 0:
        group.wait(group.comm.Irecv(as_bytes(y), group.rank + 1))
    else:
        group.wait(group.comm.Isend(as_bytes(y), group.rank - 1))


def rank_of(number: int, size: int) -> int:
    """Return the rank that has `number` in the core."""
    extra = size - core_size(size)
    return 2 * number + 1 if number < extra else number + extra
