"""A mistake: it adds into `send` itself, not a copy. See what `manyhands check` says."""

import numpy as np


def ring(send, recv, comm, op):
    """Reduce `send` over all ranks of `comm` into `recv`, in chunks that travel round a ring."""
    rank, size = comm.Get_rank(), comm.Get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    bounds = [len(send) * k // size for k in range(size + 1)]
    chunks = [send[bounds[k] : bounds[k + 1]] for k in range(size)]

    for step in range(size - 1):  # reduce-scatter
        mine = chunks[(rank - step - 1) % size]
        arriving = np.empty_like(mine)
        comm.Sendrecv(chunks[(rank - step) % size], after, 0, arriving, before, 0)
        mine[...] = op(arriving, mine)

    for step in range(size - 1):  # all-gather
        mine = chunks[(rank - step) % size]
        comm.Sendrecv(chunks[(rank - step + 1) % size], after, 0, mine, before, 0)
    recv[...] = send
