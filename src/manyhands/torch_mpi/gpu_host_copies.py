"""Copies of GPU tensors in the host's pinned memory, on which MPI works.

MPI's wheels know nothing of GPUs. An operation that is called with such tensors is done on their
copies; its last step brings to the GPU what it was to fill.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.torch_mpi.work import Steps

Method = TypeVar("Method", bound=Callable[..., Any])
Pairs = list[tuple["Tensor", "Tensor"]]  # a tensor on a GPU, and its copy in the host's memory
_pairs: ContextVar[Pairs] = ContextVar("pairs", default=[])  # noqa: B039 — never written to


def is_on_device(tensor: Tensor) -> bool:
    """Return whether MPI cannot reach a tensor's memory."""
    return tensor.is_cuda


def staged(method: Method) -> Method:
    """Make an operation of the process group accept tensors on a GPU."""

    @functools.wraps(method)
    def call(group: Any, *arguments: Any, **named: Any) -> Any:
        pairs: Pairs = []
        here = [_host_copy(argument, pairs) for argument in arguments]
        named = {name: _host_copy(argument, pairs) for name, argument in named.items()}
        if not pairs:
            return method(group, *arguments, **named)
        token = _pairs.set(pairs)
        try:
            return method(group, *here, **named)
        finally:
            _pairs.reset(token)

    return cast("Method", call)


def _host_copy(argument: Any, pairs: Pairs) -> Any:
    """Return the argument with a copy in place of each tensor on a GPU."""
    if isinstance(argument, list | tuple):
        return [_host_copy(one, pairs) for one in argument]
    if not isinstance(argument, torch.Tensor) or not is_on_device(argument):
        return argument
    if argument.layout != torch.strided:
        raise ValueError(
            f"a tensor is {argument.layout} on {argument.device}; the backend mpi4py takes dense "
            "tensors from a GPU: use .to_dense() or .cpu()"
        )
    known = [copy for tensor, copy in pairs if tensor is argument]
    if known:
        return known[0]
    copy = torch.empty(argument.shape, dtype=argument.dtype, pin_memory=argument.is_cuda)
    copy.copy_(argument.detach())  # waits for what the caller's stream has yet to compute
    pairs.append((argument, copy))
    return copy


def with_delivery(steps: Steps, outputs: Any) -> tuple[Steps, Any]:
    """Return the steps plus one that fills the GPU's tensors, which become the outputs."""
    pairs = _pairs.get()
    if not pairs:
        return steps, outputs
    filled: Pairs = []
    there = _device_tensors(outputs, pairs, filled)
    return _delivering(steps, filled), there


def _device_tensors(outputs: Any, pairs: Pairs, filled: Pairs) -> Any:
    if isinstance(outputs, Sequence):
        return [_device_tensors(one, pairs, filled) for one in outputs]
    for tensor, copy in pairs:
        if copy is outputs:
            filled.append((tensor, copy))
            return tensor
    return outputs


def _delivering(steps: Steps, filled: Pairs) -> Steps:
    yield from steps
    for tensor, copy in filled:
        tensor.detach().copy_(copy)
