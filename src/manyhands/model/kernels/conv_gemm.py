"""Convolutions and max-pooling as matrix products over patches, the batch innermost.

Libraries are made for many channels; with few of them a convolution is bound by how it moves
memory. Here activations lie in memory as (channel, row, column, example): whatever is moved moves
in runs as long as the batch. A convolution and the max-pooling behind it are one product: the
patch behind one *pooled* place gives all outputs that compete for it, as rows of the product, and
their maximum is taken between whole rows. No larger result is ever written.

Only on the CPU: anywhere else layers compute as PyTorch has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from manyhands.model.kernels import forward_override

_PATCHES = 64 << 20  # bytes of one layer's patches; from there on libraries do better
_INCREASING = (nn.ReLU, nn.Tanh)  # pooling may come before them: the largest stays the largest

Pair = tuple[int, int]


class Unit(NamedTuple):
    """Layers that change kernels together: a convolution with its pooling, or either."""

    name: str
    conv: nn.Conv2d | None
    pool: nn.MaxPool2d | None


def units(module: nn.Module, *, fuse: bool = True) -> list[Unit]:
    """Return the units of a model that matrix products can compute, in its order.

    With `fuse`, a convolution and the pooling behind it are one: nobody may look between them.
    """
    listed: list[Unit] = []
    fused: set[int] = set()
    pairs = _pairs(list(_chain(module))) if fuse else ()
    behind = {id(conv): pool for conv, pool in pairs}
    for name, layer in module.named_modules():
        if _convolves(layer):
            pool = behind.get(id(layer))
            fused.add(id(pool))
            listed.append(Unit(name, layer, pool))
        elif _pools(layer) and id(layer) not in fused:
            listed.append(Unit(name, None, layer))
    return listed


def install(parts: Iterable[Unit]) -> None:
    """Make these layers compute by matrix products."""
    for _, conv, pool in parts:
        if conv is not None:
            forward_override.override_forward(conv, _convolve, conv, pool)
            if pool is not None:
                forward_override.override_forward(pool, _skip_pool)
        elif pool is not None:
            forward_override.override_forward(pool, _pool, pool)


def remove(module: nn.Module) -> None:
    """Restore PyTorch's own forward in all layers."""
    forward_override.remove(module, _convolve, _skip_pool, _pool)


def changed(layer: nn.Module) -> bool:
    """Return whether a layer computes by matrix products."""
    return forward_override.is_overridden(layer, _convolve, _skip_pool, _pool)


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested `nn.Sequential`s: no other code sees the values between them."""
    if type(module) is nn.Sequential:
        for layer in module:
            yield from _chain(layer)
    else:
        yield module


def _pairs(chain: list[nn.Module]) -> Iterator[tuple[nn.Conv2d, nn.MaxPool2d]]:
    """Yield convolutions and the pooling after them, with or without an activation between."""
    seen = [id(layer) for layer in chain]
    for place, conv in enumerate(chain):
        between = place + 1
        if between < len(chain) and type(chain[between]) in _INCREASING:
            between += 1
        if between == len(chain) or not (_convolves(conv) and _pools(chain[between])):
            continue
        parts = chain[place : between + 1]
        if all(seen.count(id(part)) == 1 and not _has_hooks(part) for part in parts):
            yield conv, chain[between]  # type: ignore[misc]


def _has_hooks(layer: nn.Module) -> bool:
    """Return whether hooks observe the layer's input or output."""
    return any(
        getattr(layer, f"_{kind}_hooks")
        for kind in ("forward", "forward_pre", "backward", "backward_pre")
    )


def _convolves(layer: Any) -> bool:
    if type(layer) is not nn.Conv2d or isinstance(layer.padding, str) or _patched(layer):
        return False
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and layer.dilation == (1, 1)
    return plain and layer.weight.dtype in (torch.float32, torch.float64)


def _pools(layer: Any) -> bool:
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or _patched(layer):
        return False
    apart = _pair(layer.kernel_size) == _pair(layer.stride) != (1, 1) and not layer.return_indices
    return apart and _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)


def _patched(layer: nn.Module) -> bool:
    """Return whether other code has replaced the layer's forward."""
    return forward_override.is_patched_by_others(layer, _convolve, _skip_pool, _pool)


def _pair(size: int | Sequence[int]) -> Pair:
    if isinstance(size, int):
        return size, size
    first, second = size
    return first, second


def _plain(layer: nn.Conv2d | nn.MaxPool2d, x: Tensor) -> Tensor:
    """Return PyTorch's own result."""
    result: Tensor = type(layer).forward(layer, x)  # type: ignore[arg-type]
    return result


@forward_override.unobserved
def _convolve(conv: nn.Conv2d, pool: nn.MaxPool2d | None, input: Tensor) -> Tensor:
    x, shape = input, _Shape.of(conv, pool, input)
    if shape is None:
        y = _plain(conv, x)
        return y if pool is None else _plain(pool, y)
    if not torch.is_grad_enabled():
        y = _product(x, conv.weight, shape).y
        return _placed(reduce(torch.maximum, y), conv.bias, shape, len(x))
    result: Tensor = _Convolution.apply(x, conv.weight, conv.bias, shape)  # type: ignore[no-untyped-call]
    return result


def _skip_pool(input: Tensor) -> Tensor:
    """Return the input: the convolution has pooled already."""
    return input


@forward_override.unobserved
def _pool(pool: nn.MaxPool2d, input: Tensor) -> Tensor:
    x, (q, r) = input, _pair(pool.kernel_size)
    if x.dim() != 4 or x.shape[2] < q or x.shape[3] < r or not torch.is_grad_enabled():
        return _plain(pool, x)
    result: Tensor = _Pooling.apply(x, (q, r))  # type: ignore[no-untyped-call]
    return result


class _Shape(NamedTuple):
    """One layer's kernel and strides, the patch of a pooled output, and their number."""

    kernel: Pair
    stride: Pair
    padding: Pair
    pool: Pair
    patch: Pair
    step: Pair
    places: Pair

    @classmethod
    def of(cls, conv: Any, pool: nn.MaxPool2d | None, x: Tensor) -> _Shape | None:
        """Return the shape, or None where PyTorch's own kernel is better."""
        if x.dim() != 4 or len(x) == 0 or x.dtype != conv.weight.dtype or x.device.type != "cpu":
            return None
        if torch.is_autocast_enabled("cpu"):  # what is a product would become bfloat16
            return None
        kernel, stride, padding = conv.kernel_size, conv.stride, conv.padding
        pooled = (1, 1) if pool is None else _pair(pool.kernel_size)
        sizes = [x.shape[2 + i] + 2 * padding[i] for i in (0, 1)]
        patch = tuple(kernel[i] + (pooled[i] - 1) * stride[i] for i in (0, 1))
        step = tuple(pooled[i] * stride[i] for i in (0, 1))
        places = tuple((sizes[i] - patch[i]) // step[i] + 1 for i in (0, 1))
        count = x.shape[0] * x.shape[1] * patch[0] * patch[1] * places[0] * places[1]
        if min(places) < 1 or count * x.element_size() > _PATCHES:
            return None
        return cls(kernel, stride, padding, pooled, patch, step, places)


class _Product(NamedTuple):
    """Patches of the input, kernels with zeros around them, and what competes for each place."""

    sizes: torch.Size  # of the input, padded
    patches: Tensor  # (in · patch, I · J · n)
    shifted: Tensor  # (competing · out, in · patch)
    y: Tensor  # (competing, out, I · J · n)


def _product(x: Tensor, w: Tensor, shape: _Shape) -> _Product:
    """Return w · patches."""
    (ph, pw), (kh, kw) = shape.padding, shape.patch
    h = x.permute(1, 2, 3, 0)
    h = F.pad(h, (0, 0, pw, pw, ph, ph)) if ph or pw else h.contiguous()
    windows = h.unfold(1, kh, shape.step[0]).unfold(2, kw, shape.step[1])
    patches = windows.permute(0, 4, 5, 1, 2, 3).reshape(len(h) * kh * kw, -1)
    shifts = _shifts(shape, w.dtype)  # (competing, kernel, patch)
    shifted = torch.matmul(w.flatten(0, 1).flatten(1), shifts)  # (competing, out · in, patch)
    shifted = shifted.view(-1, len(patches))
    y = torch.mm(shifted, patches).view(-1, len(w), patches.shape[1])
    return _Product(h.shape, patches, shifted, y)


def _placed(largest: Tensor, b: Tensor | None, shape: _Shape, n: int) -> Tensor:
    """Return the largest plus b, which is the largest of y + b: rounding is monotonous."""
    if b is not None:
        largest.add_(b[:, None])
    return _as_base(largest.view(len(largest), *shape.places, n).permute(3, 0, 1, 2))


class _Convolution(torch.autograd.Function):
    """y = max over shifts of (w · patches) + b; x: (n, in, H, W), y: (n, out, I, J)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, shape: _Shape) -> Tensor:
        sizes, patches, shifted, y = _product(x, w, shape)
        largest, gains = _largest(y)
        ctx.save_for_backward(patches, shifted, *gains)
        ctx.shape, ctx.sizes, ctx.weight = shape, sizes, w.shape
        return _placed(largest, b, shape, len(x))

    @staticmethod
    @once_differentiable
    @forward_override.unobserved
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        patches, shifted, *gains = ctx.saved_tensors
        shape, (out, channels, kh, kw) = ctx.shape, ctx.weight
        g = g.permute(1, 2, 3, 0).reshape(out, -1)
        dx = dw = db = None
        if ctx.needs_input_grad[2]:
            db = g.sum(1)
        back = g.new_empty(len(gains) + 1, *g.shape)
        _route_gradient(g, gains, list(back))
        back = back.flatten(0, 1)
        if ctx.needs_input_grad[1]:
            whole = torch.mm(patches, back.t()).view(channels, -1, len(gains) + 1, out)
            shifts = _shifts(shape, g.dtype).transpose(1, 2).flatten(0, 1)
            whole = whole.permute(3, 0, 2, 1).reshape(out * channels, -1)
            dw = torch.mm(whole, shifts).view(out, channels, kh, kw)
        if ctx.needs_input_grad[0]:
            dx = _folded(torch.mm(shifted.t(), back), shape, ctx.sizes)
        return dx, dw, db, None


@lru_cache(maxsize=64)
def _shifts(shape: _Shape, dtype: torch.dtype) -> Tensor:
    """Return ones where the kernel lies in the patch, for each output that competes for a place.

    Shape (competing, kh · kw, patch): a kernel times it is that kernel with zeros around it.
    """
    (q, r), (kh, kw), (sh, sw) = shape.pool, shape.kernel, shape.stride
    made = torch.zeros(q, r, kh, kw, *shape.patch, dtype=dtype)
    for a, b, i, j in product(range(q), range(r), range(kh), range(kw)):
        made[a, b, i, j, a * sh + i, b * sw + j] = 1
    return made.flatten(4).flatten(2, 3).flatten(0, 1)


def _folded(d: Tensor, shape: _Shape, sizes: torch.Size) -> Tensor:
    """Return the sum of all patches' gradients for each input.

    Patches begin every `step` inputs. Cut into tiles of that size, a patch covers a few whole or
    partial tiles, and the same tile of all patches lies side by side in the sum.
    """
    (kh, kw), (sh, sw), (rows, columns) = shape.patch, shape.step, shape.places
    channels, height, width, n = sizes
    high, wide = -(-kh // sh), -(-kw // sw)  # tiles of a patch
    d = d.view(channels, kh, kw, rows, columns, n)
    total = d.new_zeros(channels, rows + high - 1, sh, columns + wide - 1, sw, n)
    for a, b in product(range(high), range(wide)):
        part = d[:, a * sh : (a + 1) * sh, b * sw : (b + 1) * sw].permute(0, 3, 1, 4, 2, 5)
        total[:, a : a + rows, : part.shape[2], b : b + columns, : part.shape[4]].add_(part)
    dx = total.flatten(3, 4).flatten(1, 2)[:, :height, :width]
    dx = F.pad(dx, (0, 0, 0, width - dx.shape[2], 0, height - dx.shape[1]))
    (ph, pw) = shape.padding
    return dx[:, ph : height - ph, pw : width - pw].permute(3, 0, 1, 2)


class _Pooling(torch.autograd.Function):
    """Max-pooling without overlap; x: (n, c, H, W)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Pair) -> Tensor:
        h = x.permute(1, 2, 3, 0)
        largest, gains = _largest(_pool_views(h, size))
        ctx.save_for_backward(*gains)
        ctx.sizes, ctx.size = h.shape, size
        return _as_base(largest.permute(3, 0, 1, 2))

    @staticmethod
    @once_differentiable
    @forward_override.unobserved
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        dx = g.new_zeros(ctx.sizes)
        _route_gradient(g.permute(1, 2, 3, 0), ctx.saved_tensors, _pool_views(dx, ctx.size))
        return dx.permute(3, 0, 1, 2), None


def _as_base(y: Tensor) -> Tensor:
    """Return the tensor as no view, so that an activation may work in place."""
    return y.data


def _pool_views(h: Tensor, size: Pair) -> list[Tensor]:
    """Return views of the competing inputs: the first of every square, the second, and so on."""
    (q, r), (height, width) = size, (h.shape[1], h.shape[2])
    return [
        h[:, a : height // q * q : q, b : width // r * r : r]
        for a, b in product(range(q), range(r))
    ]


def _largest(competing: Any) -> tuple[Tensor, list[Tensor]]:
    """Return the element-wise maximum, and for each but the first its gain over those before."""
    largest, gains = competing[0], []
    for one in competing[1:]:
        gains.append(one - largest)
        largest = torch.maximum(largest, one)
    return largest, gains


def _route_gradient(g: Tensor, gains: Sequence[Tensor], out: list[Tensor]) -> None:
    """Give each gradient to the first of the largest, as PyTorch does, and zero to others."""
    for gain, place in zip(reversed(gains), reversed(out), strict=False):
        # g where there was a gain, else zero: several times faster than torch.where.
        torch.ops.aten.threshold_backward.grad_input(g, gain, 0, grad_input=place)
        g = g - place
    out[0].copy_(g)
