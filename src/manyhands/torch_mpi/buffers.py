"""Tensors as MPI buffers: flat vectors of integers, whatever the dtype.

Data that only moves travels as unsigned or signed integers of its size, so that every dtype does,
those that MPI and NumPy have no name for too, and counts stay below MPI's limit of 2³¹ elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = NDArray[Any]

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check(*tensors: Tensor) -> None:
    """Refuse tensors that this backend cannot send.

    Raises:
        ValueError: A tensor is not a dense one on the CPU.
    """
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise ValueError(
                f"a tensor is {tensor.layout} on {tensor.device}; here the backend mpi4py takes "
                "dense tensors on a CPU or an NVIDIA GPU: use .to_dense() or .cpu()"
            )


def raw(tensor: Tensor) -> Array:
    """Return the contiguous `tensor` as a flat vector of integers, the same memory."""
    flat = _real(tensor.detach()).view(-1)
    return flat.view(_WHOLE[flat.element_size()]).numpy()


def flat_copy(tensor: Tensor) -> Array:
    """Return the content of `tensor` as a flat vector; copy only if not contiguous."""
    return raw(tensor.contiguous().resolve_conj().resolve_neg())


def numbers(tensor: Tensor) -> Array:
    """Return the contiguous `tensor` as a flat NumPy-compatible vector, the same memory."""
    return tensor.detach().view(-1).numpy()


def concatenate(tensors: Sequence[Tensor]) -> Array:
    """Return the contents of `tensors`, one after the other, as one flat vector."""
    parts = [flat_copy(tensor) for tensor in tensors]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def receive_buffer(tensors: Sequence[Tensor]) -> Array:
    """Return a new vector large enough to receive `tensors`."""
    width = tensors[0].element_size() // (2 if tensors[0].is_complex() else 1)
    length = sum(raw_length(tensor) for tensor in tensors)
    return torch.empty(length, dtype=_WHOLE[width]).numpy()


def raw_length(tensor: Tensor) -> int:
    """Return the length of `raw` for a tensor."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def split_into(vector: Array, tensors: Sequence[Tensor]) -> None:
    """Copy `vector`, piece by piece, into `tensors`."""
    start = 0
    for tensor in tensors:
        stop = start + raw_length(tensor)
        target = _real(tensor.detach())
        target.copy_(torch.from_numpy(vector[start:stop]).view(target.dtype).view(target.shape))
        start = stop


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def may_overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether the two may share memory."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


class Destination:
    """The memory that receives `tensor`: its own, or a copy if it is not contiguous."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.place = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
        self.array = raw(self.place)

    def deliver(self) -> None:
        """Copy the result to the tensor, if it is elsewhere."""
        if self.place is not self.tensor:
            self.tensor.detach().copy_(self.place)
