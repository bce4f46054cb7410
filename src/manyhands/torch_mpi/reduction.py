"""torch's reduce operations on torch's dtypes, and a non-blocking all-reduce.

Within a host it is our shared-memory all-reduce; between hosts MPI's own, where MPI has the
operation, and otherwise everyone's vectors gathered and combined in rank order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from manyhands.allreduce.buffers import Op, combine
from manyhands.allreduce.hidden_communicator import channel
from manyhands.allreduce.mpi import native
from manyhands.allreduce.shared_memory import shared_memory_steps
from manyhands.torch_mpi.buffers import Array, numbers, raw
from manyhands.torch_mpi.work import Steps

if TYPE_CHECKING:
    from torch import Tensor

_KINDS: Any = dist.ReduceOp.RedOpType
_NUMPY: dict[Any, Op] = {
    _KINDS.SUM: np.add,
    _KINDS.PRODUCT: np.multiply,
    _KINDS.MIN: np.minimum,
    _KINDS.MAX: np.maximum,
    _KINDS.BAND: np.bitwise_and,
    _KINDS.BOR: np.bitwise_or,
    _KINDS.BXOR: np.bitwise_xor,
}
_TORCH: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    _KINDS.SUM: torch.add,
    _KINDS.PRODUCT: torch.mul,
    _KINDS.MIN: torch.minimum,
    _KINDS.MAX: torch.maximum,
}
_SHORT = (torch.bfloat16, torch.float16)  # NumPy lacks the one and is slow at the other
_BITWISE = (_KINDS.BAND, _KINDS.BOR, _KINDS.BXOR)


class Reduction(NamedTuple):
    """A reduce operation on a dtype.

    Attributes:
        op: The operation on two flat vectors.
        view: Makes a contiguous tensor the vector that `op` takes.
        factor: What to multiply with before, for PREMUL_SUM; None otherwise.
        mean: Whether to divide by the size of the group afterwards.
        native: MPI's own operation; None if it has none.
    """

    op: Op
    view: Callable[[Tensor], Array]
    factor: Any
    mean: bool
    native: MPI.Op | None

    def before(self, tensor: Tensor) -> Tensor:
        """Return this rank's contribution from its `tensor`."""
        return tensor if self.factor is None else tensor.detach() * self.factor

    def after(self, tensor: Tensor, size: int) -> None:
        """Turn the sum in `tensor` into the result, in place."""
        if self.mean:
            tensor = tensor.detach()
            if tensor.is_floating_point() or tensor.is_complex():
                tensor.div_(size)
            else:
                tensor.div_(size, rounding_mode="trunc")


def reduction(asked: Any, dtype: torch.dtype) -> Reduction:
    """Return the reduction for a ReduceOp on tensors of `dtype`.

    Raises:
        ValueError: There is no such operation on that dtype.
    """
    kind = getattr(asked, "op", asked)
    if kind == _KINDS.PREMUL_SUM:
        return _reduction(_KINDS.SUM, dtype)._replace(factor=asked.factor)
    return _reduction(kind, dtype)


@cache
def _reduction(kind: Any, dtype: torch.dtype) -> Reduction:
    mean = kind == _KINDS.AVG
    if mean:
        kind = _KINDS.SUM
    fractional = dtype.is_floating_point or dtype.is_complex
    if kind not in _NUMPY or (fractional and kind in _BITWISE):
        raise ValueError(f"the reduce operation is {kind} on {dtype}; there is no such operation")
    if dtype in _SHORT:
        return Reduction(_through_torch(_TORCH[kind], dtype), raw, None, mean, None)
    if dtype not in _NUMBERS:
        raise ValueError(f"the dtype is {dtype}; the backend mpi4py cannot reduce that")
    op = _NUMPY[kind]
    name = native(op, _NUMBERS[dtype])
    return Reduction(op, numbers, None, mean, getattr(MPI, name) if name else None)


def _through_torch(function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> Op:
    def op(a: Array, b: Array) -> Array:
        x, y = torch.from_numpy(a).view(dtype), torch.from_numpy(b).view(dtype)
        return function(x, y).view(torch.int16).numpy()

    return op


def _numbers() -> dict[torch.dtype, np.dtype[Any]]:
    names = "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float32 float64 complex64"
    return {getattr(torch, name): np.dtype(name) for name in [*names.split(), "complex128"]}


_NUMBERS = _numbers()


def allreduce(x: Array, y: Array, comm: Any, how: Reduction) -> Steps:
    """Reduce the flat vector `x` over `comm` into `y`, which may be `x`; the same bits on all."""
    group = channel(comm)
    if group.private.per_host == group.size:
        yield from _quietly(shared_memory_steps(x, y, comm, how.op))
    elif how.native is not None:
        yield comm.Iallreduce(MPI.IN_PLACE if x is y else x, y, how.native).Test
    else:
        parts = np.empty((group.size, len(x)), x.dtype)
        yield comm.Iallgather(x.view(np.uint8), parts.view(np.uint8)).Test
        with np.errstate(all="ignore"):
            combine(how.op, list(parts), out=y)


def _quietly(steps: Steps) -> Steps:
    """Do `steps`, without NumPy's warnings where sums overflow: torch has none either."""
    while True:
        with np.errstate(all="ignore"):
            ready = next(steps, None)
        if ready is None:
            return
        yield ready
