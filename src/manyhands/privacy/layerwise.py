"""Sums of clipped gradients for chains of well-known layers, from one pass back through the model.

The norm alone is enough for clipping. A fully connected layer's gradient for one example is the
outer product of what came in and what comes back, so its norm is the product of theirs (Goodfellow
2015, arXiv 1510.01799) and it is never made; a convolution's is a small matrix product over the
unfolded image. The clipped sum then is one matrix product a layer, as in plain training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.errors import ConfigError
from manyhands.privacy.clipping import coefficients

if TYPE_CHECKING:
    from manyhands.replica import Replica

_POINTWISE = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_CHAINS = (nn.Sequential, nn.ModuleList)  # and no subclass, whose forward could be anything
_FREE = (*_POINTWISE, *_POOLS, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
_LOSSES = (F.cross_entropy, F.nll_loss, F.mse_loss)  # means over the examples of a batch


class Part(NamedTuple):
    """What one layer adds: the squared norm per example, (n,), and how to sum with weights."""

    squares: Tensor
    add: Callable[[Tensor, Tensor], None]  # (weights (n,), the layer's slice of the vector)


class Trace(NamedTuple):
    """One pass forward: what came out, and of each layer with parameters its input and output."""

    y: Tensor
    inputs: list[Tensor]
    outputs: list[Tensor]


class Layerwise:
    """The clipped sum for a chain of layers that do not mix examples; made by `of`.

    Guarantees: the same sums as `PerExample`, up to rounding.
    """

    def __init__(self, replica: Replica, layers: list[nn.Module], *, chunk_mb: int) -> None:
        self.replica, self.layers, self.chunk_mb = replica, layers, chunk_mb
        self.owners = [layer for layer in layers if _parameters(layer)]
        sizes = [sum(p.numel() for p in layer.parameters()) for layer in self.owners]
        ends = list(accumulate(sizes, initial=0))
        self.slices = [slice(start, stop) for start, stop in pairwise(ends)]
        self.chunk: int | None = None

    @classmethod
    def of(cls, replica: Replica, *, chunk_mb: int) -> Layerwise | None:
        """Return it for a model and a loss that it knows all of; None for any other."""
        if cls.unknown(replica):
            return None
        return cls(replica, list(_chain(replica.module)), chunk_mb=chunk_mb)

    @staticmethod
    def unknown(replica: Replica) -> str:
        """Say what of a model or its loss is not known here; empty where all is."""
        if replica.loss not in _LOSSES:
            known = ", ".join(loss.__name__ for loss in _LOSSES)
            return f"the loss is none of those that are known to be means over examples: {known}"
        layers = list(_chain(replica.module))
        for layer in layers:
            if not _known(layer):
                return f"{type(layer).__name__} is no layer that is known to keep examples apart"
        flat = [p for layer in layers for p in layer.parameters(recurse=False)]
        if [id(p) for p in flat] != [id(p) for _, p in replica.named]:
            return "a parameter is frozen, shared, or not of the chain of layers"
        return ""

    def add(self, x: Tensor, y: Tensor, clip: float, out: Tensor) -> None:
        """Add the sum of the clipped gradients of all examples to `out`, (dim,)."""
        chunk = self.chunk_for(x)
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            self._add(x[part], y[part], clip, out)

    def chunk_for(self, x: Tensor) -> int:
        """Return how many examples like these may be worked on at a time."""
        if self.chunk is None:
            self.chunk = max(1, (self.chunk_mb << 20) // self._bytes(x[:1]))
        return self.chunk

    def _add(self, x: Tensor, y: Tensor, clip: float, out: Tensor) -> None:
        trace = self.forward(x)
        back = torch.autograd.grad(self.judge(trace, y), trace.outputs)
        parts = self.parts(trace.inputs, back)
        squares = torch.stack([part.squares for part in parts]).sum(0)
        weights, finite = coefficients(squares.sqrt(), clip)
        if finite is None:
            self.sum(parts, weights, out)
        elif bool(finite.any()):  # rare: without the others, since 0 × NaN is NaN
            self._add(x[finite], y[finite], clip, out)

    def forward(self, x: Tensor) -> Trace:
        """Pass examples through the chain."""
        inputs, outputs = [], []
        prepare = self.replica.prepare or _as_it_is
        h = prepare(x)
        for layer in self.layers:
            # A first convolution of one channel forgets the layout; pooling is much faster in it.
            before = prepare(h) if isinstance(layer, _POOLS) else h
            h = layer(before)
            if _parameters(layer):
                inputs.append(before.detach())
                outputs.append(h)
        return Trace(h, inputs, outputs)

    def judge(self, trace: Trace, y: Tensor) -> Tensor:
        """Return the sum of the examples' losses."""
        loss = self.replica.loss
        return loss(trace.y, _like(trace.y, y, loss)) * len(trace.y)

    def parts(self, inputs: Sequence[Tensor], back: Sequence[Tensor]) -> list[Part]:
        """Return what each layer adds, from its input and the gradient by its output."""
        with torch.no_grad():
            return [_part(*each) for each in zip(self.owners, inputs, back, strict=True)]

    def sum(self, parts: Sequence[Part], weights: Tensor, out: Tensor) -> None:
        """Add the weighted sum of the examples' gradients to `out`; weights: (n,)."""
        for where, part in zip(self.slices, parts, strict=True):
            part.add(weights, out[where])

    def _bytes(self, x: Tensor) -> int:
        """Return how many bytes one example's intermediate results take, about."""
        count, h = x.numel(), x
        with torch.no_grad():
            for layer in self.layers:
                h = layer(h)
                count += 2 * h.numel()
                if isinstance(layer, nn.Conv2d):
                    count += layer.weight.numel() + layer.weight[0].numel() * h[0, 0].numel()
        return int(count * self.replica.params.element_size())


def _like(h: Tensor, y: Tensor, loss: Any) -> Tensor:
    """Return the targets in the outputs' shape, where the loss would spread one over the others.

    (n, 1) and (n,) would give (n, n) differences: one record in everybody's gradient.
    """
    if loss is not F.mse_loss or h.shape == y.shape:
        return y
    if h.numel() != y.numel():
        raise ConfigError(
            f"the model gives {tuple(h.shape[1:])} for targets of shape {tuple(y.shape[1:])}; "
            "expected the same"
        )
    return y.reshape(h.shape)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested `nn.Sequential`s, or of a stage, in the order of application."""
    if isinstance(module, nn.Sequential | nn.ModuleList) and type(module) in _CHAINS:
        for layer in module:
            yield from _chain(layer)
    else:
        yield module


def _parameters(layer: nn.Module) -> bool:
    return next(layer.parameters(), None) is not None


def _known(layer: Any) -> bool:
    """Say whether a layer treats every example on its own, in a way that is known here."""
    kind: Any = type(layer)
    if layer._forward_hooks or layer._forward_pre_hooks or getattr(layer, "inplace", False):
        return False  # in place, an activation overwrites the output that is differentiated
    if kind is nn.Flatten:
        return bool(layer.start_dim >= 1)
    if kind in (nn.LogSoftmax, nn.Softmax):
        return layer.dim is not None and bool(layer.dim >= 1 or layer.dim == -1)
    if kind is nn.Conv2d:
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and layer.dilation == (1, 1)
        return bool(plain) and not isinstance(layer.padding, str)
    if kind in (nn.GroupNorm, nn.LayerNorm):
        whole = kind is nn.GroupNorm or len(layer.normalized_shape) == 1
        both = layer.weight is not None and layer.bias is not None
        return bool(whole and both)
    return kind in (*_FREE, nn.Linear)


def _part(layer: Any, a: Tensor, g: Tensor) -> Part:
    """Return what a layer adds, from its input `a` and the gradient `g` of its output."""
    if isinstance(layer, nn.Linear):
        return _linear(layer, a, g) if a.dim() == 2 else _product(layer, a.flatten(1, -2), g)
    if isinstance(layer, nn.Conv2d):
        return _convolution(layer, a, g)
    return _norm(layer, a, g)


def _linear(layer: nn.Linear, a: Tensor, g: Tensor) -> Part:
    bias = layer.bias is not None
    squares = a.square().sum(1)
    squares = g.square().sum(1) * (squares + 1 if bias else squares)

    def add(weights: Tensor, out: Tensor) -> None:
        weighted = g * weights[:, None]
        size = layer.weight.numel()
        out[:size].view_as(layer.weight).addmm_(weighted.t(), a)
        if bias:
            out[size:].add_(weighted.sum(0))

    return Part(squares, add)


def _product(layer: nn.Linear, a: Tensor, g: Tensor) -> Part:
    """A fully connected layer that is applied at several places of one example; a: (n, L, in)."""
    return _summed(layer, g.flatten(1, -2).transpose(1, 2), a)


def _convolution(layer: Any, a: Tensor, g: Tensor) -> Part:
    patches = _patches(layer, a)  # (n, L, kh·kw·in), places l by column, then row
    back = g.transpose(2, 3).flatten(2)  # (n, out, L), the same order of places
    grads = [torch.bmm(back, patches).flatten(1)]
    if layer.bias is not None:
        grads.append(back.sum(2))
    made = _made(grads)
    out, channels, height, width = layer.weight.shape
    size = layer.weight.numel()

    def add(weights: Tensor, whole: Tensor) -> None:
        ordered = torch.zeros_like(whole)
        made.add(weights, ordered)
        kernel = ordered[:size].view(out, height, width, channels).permute(0, 3, 1, 2)
        whole[:size].view_as(layer.weight).add_(kernel)
        whole[size:].add_(ordered[size:])

    return Part(made.squares, add)


def _patches(layer: Any, a: Tensor) -> Tensor:
    """Return what the kernel sees at each place; a: (n, in, H, W), result (n, W'·H', kh·kw·in).

    Columns first, then rows, channels last: each copy moves long runs of numbers, which makes it
    several times faster than `unfold`.
    """
    (kh, kw), (sh, sw), (ph, pw) = layer.kernel_size, layer.stride, layer.padding
    if ph or pw:
        a = F.pad(a, (pw, pw, ph, ph))
    columns = a.permute(0, 2, 3, 1).unfold(2, kw, sw)  # (n, H, W', in, kw)
    strips = columns.permute(0, 2, 1, 4, 3).flatten(3)  # (n, W', H, kw·in), copied
    windows = strips.unfold(2, kh, sh)  # (n, W', H', kw·in, kh)
    return windows.transpose(3, 4).flatten(3).flatten(1, 2)


def _summed(layer: Any, g: Tensor, a: Tensor) -> Part:
    """The gradient is Σ_l g_l a_lᵀ over places l; g: (n, out, L), a: (n, L, in)."""
    grads = [torch.bmm(g, a).flatten(1)]
    if layer.bias is not None:
        grads.append(g.sum(2))
    return _made(grads)


def _norm(layer: Any, a: Tensor, g: Tensor) -> Part:
    """GroupNorm or LayerNorm: the gradient of the scale is Σ g x̂, that of the shift Σ g."""
    if isinstance(layer, nn.GroupNorm):
        normal = F.group_norm(a, layer.num_groups, eps=layer.eps).flatten(2)
        back = g.flatten(2)
        return _made([(back * normal).sum(2), back.sum(2)])
    normal = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    places = list(range(1, a.dim() - 1))
    if not places:
        return _made([g * normal, g])
    return _made([(g * normal).sum(places), g.sum(places)])


def _made(grads: list[Tensor]) -> Part:
    """Gradients that were made for every example; each (n, size)."""

    def add(weights: Tensor, out: Tensor) -> None:
        sizes = [math.prod(g.shape[1:]) for g in grads]
        for part, g in zip(torch.split(out, sizes), grads, strict=True):
            part.addmv_(g.t(), weights)

    norms = torch.stack([torch.linalg.vector_norm(g, dim=1) for g in grads])
    return Part(norms.square().sum(0), add)
