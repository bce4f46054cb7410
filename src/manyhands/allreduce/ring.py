"""The bandwidth-optimal ring."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.allreduce.buffers import Array, Op, apply, as_bytes, cuts, deliver, flatten
from manyhands.allreduce.hidden_communicator import Channel, channel


def ring(send: Array, recv: Array, comm: Any, op: Op = np.add) -> None:
    """Reduce `send` over all ranks of `comm` into `recv`, in chunks that travel round a ring.

        cut x into P chunks; r is this rank, all chunk numbers are modulo P
        for s = 0 … P-2:                                reduce-scatter
            send chunk r-s to r+1,  receive chunk r-s-1 from r-1
            y[r-s-1] = received ∘ x[r-s-1]
        for s = 0 … P-2:                                all-gather
            send y[r-s+1] to r+1,  receive y[r-s] from r-1

    Cost for n bytes on P processes: each sends 2 (P - 1) messages of n / P, in all 2 n (P - 1) /
    P bytes: under 2 n however many processes there are; all together 2 (P - 1) n; 2 (P - 1)
    steps. No algorithm on messages sends less per process, but the steps grow with P.

    Guarantees: every chunk is reduced along one chain and then copied, so all ranks get the
    same bits. Extra memory: one chunk. Arguments as for `naive`.

    Reference: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", Journal of Parallel and Distributed Computing 69 (2009).
    """
    x, y = flatten(send, recv)
    group = channel(comm)
    if group.size == 1:
        y[...] = x
    else:
        _ring(x, y, group, op)
    deliver(y, recv)


def ring_in_place(vector: Array, group: Channel, op: Op) -> None:
    """Run `ring` on a flat, contiguous vector that is both `send` and `recv`."""
    if group.size > 1:
        _ring(vector, vector, group, op)


def _ring(x: Array, y: Array, group: Channel, op: Op) -> None:
    rank, size, comm = group.rank, group.size, group.comm
    after, before = (rank + 1) % size, (rank - 1) % size
    bounds = cuts(len(x), size)

    def chunk(vector: Array, number: int) -> Array:
        number %= size
        return vector[bounds[number] : bounds[number + 1]]

    inbox = np.empty(-(-len(x) // size), x.dtype)
    for step in range(size - 1):
        outgoing = chunk(x if step == 0 else y, rank - step)
        mine = chunk(x, rank - step - 1)
        incoming = inbox[: len(mine)]
        group.wait(
            comm.Irecv(as_bytes(incoming), before),
            comm.Isend(as_bytes(outgoing), after),
        )
        apply(op, incoming, mine, out=chunk(y, rank - step - 1))
    for step in range(size - 1):
        group.wait(
            comm.Irecv(as_bytes(chunk(y, rank - step)), before),
            comm.Isend(as_bytes(chunk(y, rank - step + 1)), after),
        )
