"""Recursive doubling: few steps, for small arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.allreduce.buffers import Array, Op, apply, as_bytes, deliver, flatten
from manyhands.allreduce.hidden_communicator import Channel, channel
from manyhands.allreduce.to_power_of_two import core_size, fold, rank_of, unfold


def recursive_doubling(send: Array, recv: Array, comm: Any, op: Op = np.add) -> None:
    """Reduce `send` over all ranks of `comm` into `recv`, with a partner twice as far each step.

        Q = largest power of two up to P; the P - Q extra ranks hand their array to a neighbour
        for d = 1, 2, 4 … Q/2:
            exchange y with the rank whose number differs in bit d;  y = lower ∘ higher
        the neighbours hand the result back

    Cost for n bytes on P = 2^k processes: each sends k messages of n; all together P k n bytes; k
    steps, the fewest there can be. Otherwise two steps more, in which P - Q ranks hand over and
    back.

    Guarantees: partners put the lower rank's part first, so all ranks get the same bits.
    Extra memory: n. Arguments as for `naive`.

    Reference: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
    in MPICH", International Journal of High Performance Computing Applications 19 (2005).
    """
    x, y = flatten(send, recv)
    group = channel(comm)
    number = fold(x, y, group, op)
    if number is not None:
        _double(y, number, group, op)
    unfold(y, group)
    deliver(y, recv)


def _double(y: Array, number: int, group: Channel, op: Op) -> None:
    incoming = np.empty_like(y)
    distance = 1
    while distance < core_size(group.size):
        partner = rank_of(number ^ distance, group.size)
        group.wait(
            group.comm.Irecv(as_bytes(incoming), partner),
            group.comm.Isend(as_bytes(y), partner),
        )
        first, second = (incoming, y) if number & distance else (y, incoming)
        apply(op, first, second, out=y)
        distance *= 2
