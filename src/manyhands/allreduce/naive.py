"""Everyone sends everything to everyone."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.allreduce.buffers import Array, Op, as_bytes, combine, deliver, flatten
from manyhands.allreduce.hidden_communicator import channel


def naive(send: Array, recv: Array, comm: Any, op: Op = np.add) -> None:
    """Reduce `send` over all ranks of `comm` into `recv`, each rank for itself.

        for each other rank q:  send x to q,  receive x_q
        y = x_0 ∘ x_1 ∘ … ∘ x_{P-1}

    Cost for n bytes on P processes: each sends P - 1 messages, (P - 1) n bytes; all together
    P (P - 1) n bytes; one step. Every process needs memory for P n bytes.

    Guarantees: every rank reduces in rank order, so all get the same bits, and the result is that
    of a sequential loop over the ranks. `send` is unchanged unless it is `recv`.

    Args:
        send: This rank's array, of any dtype without objects, any shape and layout.
        recv: Where the result goes; same shape and dtype, may be `send`.
        comm: An mpi4py communicator; all its ranks must call.
        op: Elementwise, associative and commutative function of two arrays.
    """
    x, y = flatten(send, recv)
    group = channel(comm)
    others = [rank for rank in range(group.size) if rank != group.rank]
    inbox = {rank: np.empty_like(x) for rank in others}
    receives = [group.comm.Irecv(as_bytes(inbox[rank]), rank) for rank in others]
    sends = [group.comm.Isend(as_bytes(x), rank) for rank in others]
    group.wait(*receives, *sends)  # x may be y: nothing is written before it has left

    inbox[group.rank] = x.copy() if x is y else x
    combine(op, [inbox[rank] for rank in range(group.size)], out=y)
    deliver(y, recv)
