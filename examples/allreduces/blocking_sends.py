"""A mistake: every rank sends before any receives. See what `manyhands check` says."""

import numpy as np


def ring(send, recv, comm, op):
    """Reduce `send` over all ranks of `comm` into `recv`, in chunks that travel round a ring."""
    rank, size = comm.Get_rank(), comm.Get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    recv[...] = send
    bounds = [len(send) * k // size for k in range(size + 1)]
    chunks = [recv[bounds[k] : bounds[k + 1]] for k in range(size)]

    for step in range(size - 1):  # reduce-scatter
        mine = chunks[(rank - step - 1) % size]
        arriving = np.empty_like(mine)
        comm.Send(chunks[(rank - step) % size], after)
        comm.Recv(arriving, before)
        mine[...] = op(arriving, mine)

    for step in range(size - 1):  # all-gather
        mine = chunks[(rank - step) % size]
        comm.Send(chunks[(rank - step + 1) % size], after)
        comm.Recv(mine, before)
