"""MPI's own all-reduce, under the contract of the others."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.allreduce.buffers import Array, Op, apply, deliver, flatten

if TYPE_CHECKING:
    from mpi4py import MPI

# What MPI computes as NumPy does, by kind of dtype. MPI's MAX of floats is not here: with a NaN it
# depends on the order, so ranks could differ. Nor is the product of complex numbers: where the
# compiler fuses it, a·b and b·a differ in the last bit.
_INTEGER = {
    np.add: "SUM", np.multiply: "PROD", np.maximum: "MAX", np.minimum: "MIN",
    np.bitwise_and: "BAND", np.bitwise_or: "BOR", np.bitwise_xor: "BXOR",
    np.logical_and: "LAND", np.logical_or: "LOR", np.logical_xor: "LXOR",
}  # fmt: skip
_BOOLEAN = {
    np.add: "LOR", np.multiply: "LAND", np.maximum: "LOR", np.minimum: "LAND",
    np.bitwise_and: "LAND", np.bitwise_or: "LOR", np.bitwise_xor: "LXOR",
    np.logical_and: "LAND", np.logical_or: "LOR", np.logical_xor: "LXOR",
}  # fmt: skip
_REAL = {np.add: "SUM", np.multiply: "PROD"}
_COMPLEX = {np.add: "SUM"}
_NATIVE: dict[str, dict[Any, str]] = {
    **dict.fromkeys("bhilqBHILQ", _INTEGER),
    "?": _BOOLEAN,
    **dict.fromkeys("fdg", _REAL),
    **dict.fromkeys("FD", _COMPLEX),
}


def native(op: Op, dtype: np.dtype[Any]) -> str | None:
    """Return the name of MPI's operation that is `op` on `dtype`; None if there is none."""
    if not isinstance(op, np.ufunc) or not dtype.isnative:
        return None
    return _NATIVE.get(dtype.char, {}).get(op)


def mpi(send: Array, recv: Array, comm: Any, op: Op = np.add) -> None:
    """Reduce `send` over all ranks of `comm` into `recv` by MPI_Allreduce.

    An `op` that MPI has no equal for is handed to MPI as a function.

    Cost: MPI's choice; usually recursive doubling for small arrays and Rabenseifner's algorithm
    for large ones.

    Guarantees: those of the MPI library; MPICH and Open MPI give all ranks the same bits, unless
    NaNs with different payloads meet. Arguments as for `naive`.
    """
    name = native(op, send.dtype)
    if name is not None:
        by_name(send, recv, comm, name)
        return
    x, y = flatten(send, recv)
    if len(x) and comm.size > 1:
        _allreduce_by_function(x, y, comm, op)
    else:
        y[...] = x
    deliver(y, recv)


def by_name(send: Array, recv: Array, comm: Any, name: str) -> None:
    """Do what `mpi` does for the operation that `native` has found."""
    x, y = flatten(send, recv)
    comm.Allreduce(_of_mpi("IN_PLACE") if x is y else x, y, _of_mpi(name))
    deliver(y, recv)


@functools.cache
def _of_mpi(name: str) -> Any:
    """Return what `name` is in mpi4py, which is not imported before it is needed."""
    from mpi4py import MPI

    return getattr(MPI, name)


def _allreduce_by_function(x: Array, y: Array, comm: Any, op: Op) -> None:
    from mpi4py import MPI

    def function(theirs: Any, ours: Any, datatype: MPI.Datatype) -> None:
        total = np.frombuffer(ours, np.uint8).view(x.dtype)
        apply(op, np.frombuffer(theirs, np.uint8).view(x.dtype), total, out=total)

    item = MPI.BYTE.Create_contiguous(x.dtype.itemsize).Commit()
    mpi_op = MPI.Op.Create(function, commute=True)
    try:
        comm.Allreduce(
            [x.view(np.uint8).copy(), len(x), item], [y.view(np.uint8), len(y), item], mpi_op
        )
    finally:
        mpi_op.Free()
        item.Free()
