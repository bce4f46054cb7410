"""Max-pooling by PyTorch's kernel for channels last, also where channels do not come last.

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


def found(module: nn.Module) -> list[nn.MaxPool2d]:
    """Return the layers that can be computed this way."""
    return [
        layer
        for layer in module.modules()
        if type(layer) is nn.MaxPool2d
        and not layer.return_indices
        and not forward_override.patched(layer, _pooled)
    ]


def install(module: nn.Module) -> None:
    """Let these layers compute so from now on."""
    for layer in found(module):
        forward_override.give(layer, _pooled, layer)


def remove(module: nn.Module) -> None:
    """Let all layers compute as PyTorch has them."""
    forward_override.remove(module, _pooled)


def changed(layer: nn.Module) -> bool:
    """Say whether a layer computes so."""
    return forward_override.changed(layer, _pooled)


@forward_override.unobserved
def _pooled(pool: nn.MaxPool2d, input: Tensor) -> Tensor:
    if pool.return_indices or not _worthwhile(input):
        plain: Tensor = nn.MaxPool2d.forward(pool, input)
        return plain
    settings = _settings(pool)
    if not torch.is_grad_enabled():
        return _moved(input, settings)[0]
    result: Tensor = _Pooling.apply(input, settings)  # type: ignore[no-untyped-call]
    return result


def _worthwhile(x: Tensor) -> bool:
    plain = x.dim() == 4 and x.is_cpu and x.dtype in (torch.float32, torch.float64)
    return plain and x.numel() >= _FEW and x.is_contiguous()


def _settings(pool: nn.MaxPool2d) -> tuple[Any, ...]:
    """Return what PyTorch's operators want to know of a pooling, behind its input."""
    sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return (*((s, s) if isinstance(s, int) else tuple(s) for s in sizes), pool.ceil_mode)


def _moved(x: Tensor, settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Return the largest of each place and where they were, as PyTorch has them; (n, c, I, J)."""
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
        largest, places = _moved(x, settings)
        ctx.save_for_backward(x, places)
        ctx.settings = settings
        return largest

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        x, places = ctx.saved_tensors
        back = torch.ops.aten.max_pool2d_with_indices_backward.default
        return back(g, x, *ctx.settings, places), None
