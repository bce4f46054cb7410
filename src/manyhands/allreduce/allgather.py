"""An all-gather round a ring; then everyone reduces for itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.allreduce.buffers import Array, Op, as_bytes, combine, deliver, flatten
from manyhands.allreduce.hidden_communicator import channel


def allgather(send: Array, recv: Array, comm: Any, op: Op = np.add) -> None:
    """Reduce `send` over all ranks of `comm` into `recv` after gathering every rank's array.

        x_r is this rank's array; all rank numbers are modulo P
        for s = 0 … P-2:  send x_{r-s} to r+1,  receive x_{r-s-1} from r-1
        y = x_0 ∘ x_1 ∘ … ∘ x_{P-1}

    Cost for n bytes on P processes: each sends P - 1 messages, (P - 1) n bytes; all together
    P (P - 1) n bytes; P - 1 steps. As many bytes as `naive`, but only between neighbours. Every
    process needs memory for P n bytes. It is what is left of an all-reduce where a group can only
    gather; `ring` sends P / 2 times less.

    Guarantees: every rank reduces in rank order, so all get the same bits, those of `naive`.
    `send` is unchanged unless it is `recv`. Arguments as for `naive`.
    """
    x, y = flatten(send, recv)
    group = channel(comm)
    rank, size = group.rank, group.size
    everyones = np.empty((size, len(x)), x.dtype)
    everyones[rank] = x
    for step in range(size - 1):
        group.wait(
            group.comm.Irecv(as_bytes(everyones[(rank - step - 1) % size]), (rank - 1) % size),
            group.comm.Isend(as_bytes(everyones[(rank - step) % size]), (rank + 1) % size),
        )
    combine(op, list(everyones), out=y)
    deliver(y, recv)
