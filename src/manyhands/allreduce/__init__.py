"""All-reduces written by hand, each in a file of its own; they stand alone on NumPy and mpi4py.

    f(send, recv, comm, op=np.add)

reduces `send`, a NumPy array of any dtype (without objects), shape and layout, over all ranks of
the mpi4py communicator `comm` into `recv`, by `op`: any elementwise, associative and commutative
function of two arrays. All ranks get the same bits. `ALGORITHMS` has them by name, `auto`
chooses, `cost` says what each sends, and `Metered` counts what is really sent.

Import this package before `mpi4py.MPI`: it selects the MPI library of the mpiexec that started the
process, where pip installed that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from manyhands.allreduce.allgather import allgather
from manyhands.allreduce.choose import auto, choose
from manyhands.allreduce.cost import Cost, cost
from manyhands.allreduce.hierarchical import hierarchical
from manyhands.allreduce.metered import Meter, Metered
from manyhands.allreduce.mpi import mpi
from manyhands.allreduce.naive import naive
from manyhands.allreduce.rabenseifner import rabenseifner
from manyhands.allreduce.recursive_doubling import recursive_doubling
from manyhands.allreduce.ring import ring
from manyhands.allreduce.shared_memory import shared_memory
from manyhands.launch.mpi_libraries import load_matching

load_matching()  # nothing above imports mpi4py.MPI, which starts MPI, before a function is called

ALGORITHMS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "auto": auto,
        "mpi": mpi,
        "naive": naive,
        "allgather": allgather,
        "ring": ring,
        "recursive-doubling": recursive_doubling,
        "rabenseifner": rabenseifner,
        "shared-memory": shared_memory,
        "hierarchical": hierarchical,
    }
)

__all__ = [
    "ALGORITHMS",
    "Cost",
    "Meter",
    "Metered",
    "allgather",
    "auto",
    "choose",
    "cost",
    "hierarchical",
    "mpi",
    "naive",
    "rabenseifner",
    "recursive_doubling",
    "ring",
    "shared_memory",
]
