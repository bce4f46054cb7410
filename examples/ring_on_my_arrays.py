"""The hand-written ring all-reduce on arrays of one's own, without any training.

Run it under an mpiexec: `mpiexec -n 4 python examples/ring_on_my_arrays.py`.
"""

import numpy as np
from mpi4py import MPI

from manyhands.allreduce import Metered, naive, ring


def main():
    comm = MPI.COMM_WORLD
    mine = np.arange(12.0).reshape(3, 4) * (comm.rank + 1)
    total = np.empty_like(mine)
    ring(mine, total, comm)
    largest = np.empty_like(mine)
    ring(mine, largest, comm, op=np.maximum)

    expected = np.arange(12.0).reshape(3, 4) * sum(range(1, comm.size + 1))
    assert np.array_equal(total, expected)
    assert np.array_equal(largest, np.arange(12.0).reshape(3, 4) * comm.size)

    counted = {}
    for algorithm in (naive, ring):
        metered = Metered(comm)
        algorithm(mine, total, metered)
        counted[algorithm.__name__] = metered.meter.bytes
    if comm.rank == 0:
        print(f"{comm.size} processes agree; bytes that rank 0 sent: {counted}")


if __name__ == "__main__":
    main()
