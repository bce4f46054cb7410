"""Max-pooling by PyTorch's channels-last kernel, also for other memory formats.

On a CPU PyTorch's kernel for (example, channel, row, column) looks at one number after the other,
with a branch for each; the one for channels last compares as many at once as a register holds. To a
pooling the channels of all examples are the same: with these innermost it is several times as fast,
and what that saves is more than moving the numbers there and back costs, unless they are few.

Values and gradients are PyTorch's, bit for bit; the first of equals is the same one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from manyhands.model.kernels import forward_override

_FEW = 1 << 13  # numbers below which moving them costs more than it saves


def find_layers(module: nn.Module) -> list[nn.MaxPool2d]:
    """Return the layers that this kernel can compute."""
    return [
        layer
        for layer in module.modules()
        if type(layer) is nn.MaxPool2d
        and not layer.return_indices
        and not forward_override.is_patched_by_others(layer, _pooled_forward)
    ]


def install(module: nn.Module) -> None:
    """Make these layers use the kernel."""
    for layer in find_layers(module):
        forward_override.override_forward(layer, _pooled_forward, layer)


def remove(module: nn.Module) -> None:
    """Restore PyTorch's own forward in all layers."""
    forward_override.remove(module, _pooled_forward)


def changed(layer: nn.Module) -> bool:
    """Return whether a layer uses the kernel."""
    return forward_override.is_overridden(layer, _pooled_forward)


@forward_override.unobserved
def _pooled_forward(pool: nn.MaxPool2d, input: Tensor) -> Tensor:
    if pool.return_indices or not _worthwhile(input):
        plain: Tensor = nn.MaxPool2d.forward(pool, input)
        return plain
    settings = _settings(pool)
    if not torch.is_grad_enabled():
        return _max_and_indices(input, settings)[0]
    result: Tensor = _Pooling.apply(input, settings)  # type: ignore[no-untyped-call]
    return result


def _worthwhile(x: Tensor) -> bool:
    plain = x.dim() == 4 and x.is_cpu and x.dtype in (torch.float32, torch.float64)
    return plain and x.numel() >= _FEW and x.is_contiguous()


def _settings(pool: nn.MaxPool2d) -> tuple[Any, ...]:
    """Return the arguments of PyTorch's pooling operators after the input."""
    sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return (*((s, s) if isinstance(s, int) else tuple(s) for s in sizes), pool.ceil_mode)


def _max_and_indices(x: Tensor, settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Return the maxima and their indices in PyTorch's layout; (n, c, I, J)."""
    n, c, height, width = x.shape
    planes = x.view(1, n * c, height, width).contiguous(memory_format=torch.channels_last)
    largest, places = torch.ops.aten.max_pool2d_with_indices.default(planes, *settings)
    shape = (n, c, *largest.shape[2:])
    # The first is made no view of anything: an activation behind it may work in place.
    return largest.contiguous().view(shape).data, places.contiguous().view(shape)


class _Pooling(torch.autograd.Function):
    """Max-pooling; x: (n, c, H, W)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: tuple[Any, ...]) -> Tensor:
        largest, places = _max_and_indices(x, settings)
        ctx.save_for_backward(x, places)
        ctx.settings = settings
        return largest

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        x, places = ctx.saved_tensors
        back = torch.ops.aten.max_pool2d_with_indices_backward.default
        return back(g, x, *ctx.settings, places), None
