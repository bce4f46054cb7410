"""Rabenseifner's algorithm: the bytes of the ring in logarithmically many steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.allreduce.buffers import Array, Op, apply, as_bytes, cuts, deliver, flatten
from manyhands.allreduce.hidden_communicator import Channel, channel
from manyhands.allreduce.to_power_of_two import core_size, fold, rank_of, unfold


def rabenseifner(send: Array, recv: Array, comm: Any, op: Op = np.add) -> None:
    """Reduce `send` over all ranks of `comm` into `recv` by halving, then doubling.

        Q = largest power of two up to P; the P - Q extra ranks hand their array to a neighbour
        for d = Q/2 … 2, 1:                             reduce-scatter by recursive halving
            send the partner its half of my span,  receive my half;  y[mine] = lower ∘ higher
        for d = 1, 2 … Q/2:                             all-gather by recursive doubling
            exchange spans with the same partners
        the neighbours hand the result back

    Cost for n bytes on P = 2^k processes: each sends 2 k messages, in all 2 n (P - 1) / P bytes
    as in the ring; all together 2 (P - 1) n; 2 k steps. Otherwise P - Q ranks also hand n over and
    get n back.

    Guarantees: each chunk is reduced by one rank and then copied, so all ranks get the same bits.
    Extra memory: n / 2. Arguments as for `naive`.

    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
    in MPICH", International Journal of High Performance Computing Applications 19 (2005).
    """
    x, y = flatten(send, recv)
    group = channel(comm)
    number = fold(x, y, group, op)
    if number is not None:
        _halve_then_double(y, number, group, op)
    unfold(y, group)
    deliver(y, recv)


def _halve_then_double(y: Array, number: int, group: Channel, op: Op) -> None:
    core = core_size(group.size)
    bounds = cuts(len(y), core)
    inbox = np.empty(-(-len(y) // 2), y.dtype)
    distance = core // 2
    while distance:
        mine, theirs = (
            _span(y, bounds, number, distance),
            _span(y, bounds, number ^ distance, distance),
        )
        incoming = inbox[: len(mine)]
        _exchange(theirs, incoming, rank_of(number ^ distance, group.size), group)
        first, second = (incoming, mine) if number & distance else (mine, incoming)
        apply(op, first, second, out=mine)
        distance //= 2
    distance = 1
    while distance < core:
        mine, theirs = (
            _span(y, bounds, number, distance),
            _span(y, bounds, number ^ distance, distance),
        )
        _exchange(mine, theirs, rank_of(number ^ distance, group.size), group)
        distance *= 2


def _span(y: Array, bounds: list[int], number: int, width: int) -> Array:
    """Return the `width` chunks, aligned to `width`, that hold chunk `number`."""
    start = number - number % width
    return y[bounds[start] : bounds[start + width]]


def _exchange(outgoing: Array, incoming: Array, partner: int, group: Channel) -> None:
    group.wait(
        group.comm.Irecv(as_bytes(incoming), partner),
        group.comm.Isend(as_bytes(outgoing), partner),
    )
