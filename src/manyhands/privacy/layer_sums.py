"""One layer's contribution to a clipped sum: squared norms per example, weighted sums.

A layer that is applied at T places of an example (a convolution, a fully connected layer on a
sequence) has the gradient Σ_l g_l a_lᵀ, of out × in numbers. It can be made for every example; or
its norm alone is taken from two T × T matrices of products, Σ_lm (a_l·a_m)(g_l·g_m), and the
clipped sum by one product as in plain training (the ghost norm, Li et al. 2022, arXiv 2110.05679).
Which is faster is measured once for each layer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Way = Literal["made", "ghost"]

_POINTWISE = (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus)
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_FREE = (*_POINTWISE, *POOLS, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)

_RUN = 4096  # numbers that float32 may add up one after the other

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class LayerGradient(NamedTuple):
    """One layer's squared gradient norm per example, (n,), and its weighted sum."""

    squares: Tensor
    add: Callable[[Tensor, Tensor], None]  # (weights (n,), the layer's slice of the vector)


def is_altered(layer: Any) -> bool:
    """Return whether a layer computes something else than its class says: hooks, or a `forward`.

    A hook of the backward pass may mix examples as well as one of the forward pass.
    """
    return "forward" in vars(layer) or any(getattr(layer, name) for name in _HOOKS)


def is_known(layer: Any) -> bool:
    """Return whether a layer is known to treat every example on its own."""
    kind: Any = type(layer)
    if is_altered(layer) or getattr(layer, "inplace", False):
        return False  # in place, an activation overwrites the output that is differentiated
    if kind is nn.Flatten:
        return bool(layer.start_dim >= 1)
    if kind in (nn.LogSoftmax, nn.Softmax):
        return layer.dim is not None and bool(layer.dim >= 1 or layer.dim == -1)
    if kind is nn.Conv2d:
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and layer.dilation == (1, 1)
        return bool(plain) and not isinstance(layer.padding, str)
    if kind is nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return kind in (*_FREE, nn.Linear, nn.GroupNorm, nn.LayerNorm)


def layer_gradient(layer: Any, a: Tensor, g: Tensor, way: Way = "made") -> LayerGradient:
    """Return a layer's contribution, from its input `a` and its output's gradient `g`."""
    if not is_known(layer):
        return _by_vmap(layer, a, g)
    if isinstance(layer, nn.Embedding):
        return _embedding(layer, a, g)
    if isinstance(layer, nn.Linear) and a.dim() == 2:
        return _linear(layer, a, g)
    if isinstance(layer, nn.Linear | nn.Conv2d):
        return _at_places(layer, a, g, way)
    return _norm(layer, a, g)


def faster_way(layer: Any, a: Tensor, g: Tensor) -> Way:
    """Return the faster of two ways, by trying; without trying where one cannot win.

    Over T places the ghost norm takes 2T² numbers an example, the gradient out × in. With
    2T² ≥ out × in the ghost norm has more operations as well: T² (in + out) ≥ √2 · T · in · out.
    """
    if not is_known(layer) or not isinstance(layer, nn.Linear | nn.Conv2d) or a.dim() == 2:
        return "made"
    places = g[0].numel() // len(layer.weight)
    if 2 * places**2 >= layer.weight.numel():
        return "made"
    if a.device.type != "cpu":
        return "ghost"  # a clock here would not wait for the device
    ways: tuple[Way, ...] = ("ghost", "made")
    rounds = [[_seconds(layer, a, g, way) for way in ways] for _ in range(3)]
    best = [min(taken) for taken in zip(*rounds, strict=True)]
    return ways[best.index(min(best))]


def _seconds(layer: Any, a: Tensor, g: Tensor, way: Way) -> float:
    """Return how long one way took, this time."""
    start = time.perf_counter()
    out = g.new_zeros(sum(p.numel() for p in layer.parameters()))
    layer_gradient(layer, a, g, way).add(g.new_ones(len(g)), out)
    return time.perf_counter() - start


def _by_vmap(layer: nn.Module, a: Tensor, g: Tensor) -> LayerGradient:
    """Compute a layer of any kind, one example after the other, by vmap."""
    params = {name: p.detach() for name, p in layer.named_parameters()}

    def pulled(params: dict[str, Tensor], a: Tensor, g: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, params, (a.clone()[None],))
        return (y * g[None]).sum()

    grads = torch.func.vmap(torch.func.grad(pulled), (None, 0, 0))(params, a, g)
    return _from_gradients([grads[name].flatten(1) for name in params])


def _linear(layer: nn.Linear, a: Tensor, g: Tensor) -> LayerGradient:
    bias = layer.bias is not None
    squares = (g.square().sum(1) + _lost(g)) * (a.square().sum(1) + _lost(a) + bias)

    def add(weights: Tensor, out: Tensor) -> None:
        weighted = g * weights[:, None]
        size = layer.weight.numel()
        out[:size].view_as(layer.weight).addmm_(weighted.t(), a)
        if bias:
            out[size:].add_(weighted.sum(0))

    return LayerGradient(squares, add)


def _at_places(layer: Any, a: Tensor, g: Tensor, way: Way) -> LayerGradient:
    """Compute a linear layer or convolution that is applied at several places of an example."""
    bias, take = layer.bias is not None, _ghost if way == "ghost" else _summed
    if isinstance(layer, nn.Linear):
        return take(g.flatten(1, -2).transpose(1, 2), a.flatten(1, -2), bias)
    return _convolution(layer, take(g.transpose(2, 3).flatten(2), _patches(layer, a), bias))


def _convolution(layer: Any, ordered: LayerGradient) -> LayerGradient:
    """Bring a sum over kernels whose channels come last, as patches have them, into order."""
    out, channels, height, width = layer.weight.shape
    size = layer.weight.numel()

    def add(weights: Tensor, whole: Tensor) -> None:
        last = torch.zeros_like(whole)
        ordered.add(weights, last)
        kernel = last[:size].view(out, height, width, channels).permute(0, 3, 1, 2)
        whole[:size].view_as(layer.weight).add_(kernel)
        whole[size:].add_(last[size:])

    return LayerGradient(ordered.squares, add)


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


def _summed(g: Tensor, a: Tensor, bias: bool) -> LayerGradient:
    """The gradient is Σ_l g_l a_lᵀ over places l, and is made; g: (n, out, L), a: (n, L, in)."""
    return _from_gradients([torch.bmm(g, a).flatten(1), *([g.sum(2)] if bias else [])])


def _ghost(g: Tensor, a: Tensor, bias: bool) -> LayerGradient:
    """As `_summed`, by products of the places with each other; no example's gradient is made.

    Where the places cancel each other, rounding could make a norm look too small, and too much
    would pass: so what rounding and underflow may have taken away is added.
    """
    inputs = torch.bmm(a, a.transpose(1, 2)) + bias  # (n, L, L); a bias is an input of 1
    backs = torch.bmm(g.transpose(1, 2), g)
    lengths = (_diagonal(inputs) * _diagonal(backs)).sqrt().sum(1)  # Σ_l ‖a_l‖ ‖g_l‖
    longest = max(a.shape[1:]) + g.shape[1]
    slack = lengths.square() * (longest * torch.finfo(g.dtype).eps)
    slack += _diagonal(inputs).sum(1) * _lost(g) + _diagonal(backs).sum(1) * _lost(a)
    squares = (inputs * backs).sum((1, 2)) + slack

    def add(weights: Tensor, out: Tensor) -> None:
        weighted = (g * weights[:, None, None]).transpose(0, 1).flatten(1)  # (out, n·L)
        size = g.shape[1] * a.shape[2]
        out[:size].view(g.shape[1], a.shape[2]).addmm_(weighted, a.flatten(0, 1))
        if bias:
            out[size:].add_(weighted.sum(1))

    return LayerGradient(squares, add)


def squared_lengths(rows: Tensor) -> Tensor:
    """Return the squared norm of each row, (n,); rows: (n, size).

    `vector_norm` adds one number after the other. Over millions of them a norm in float32 reads
    low, and more than C would pass: so each of its sums is of a short run.
    """
    count = rows.shape[1] // _RUN
    runs = rows[:, : count * _RUN].view(len(rows), count, _RUN)
    each: Tensor = torch.linalg.vector_norm(runs, dim=2)
    rest: Tensor = torch.linalg.vector_norm(rows[:, count * _RUN :], dim=1)
    return each.square().sum(1) + rest.square()  # `sum` adds pairwise


def _lost(of: Tensor) -> float:
    """Return more than underflow takes from a sum of products of one example's numbers.

    It is nothing beside any C, unless it meets a factor near the largest number of its type.
    """
    return of[:1].numel() * torch.finfo(of.dtype).tiny


def _diagonal(products: Tensor) -> Tensor:
    return products.diagonal(dim1=1, dim2=2)


def _embedding(layer: nn.Embedding, a: Tensor, g: Tensor) -> LayerGradient:
    """A row's gradient is the sum over the places with its number; a: (n, …), g: (n, …, size)."""
    n, size = len(a), layer.embedding_dim
    rows, back = a.reshape(n, -1), g.reshape(n, -1, size)
    if layer.padding_idx is not None:
        back = torch.where((rows == layer.padding_idx)[..., None], 0.0, back)
    owner = torch.arange(n, device=a.device)[:, None] * layer.num_embeddings
    pairs, place = torch.unique(owner + rows, return_inverse=True)  # each example's own rows
    sums = back.new_zeros(len(pairs), size).index_add_(0, place.flatten(), back.flatten(0, 1))
    whose = pairs // layer.num_embeddings
    squares = back.new_zeros(n, dtype=torch.float64)  # it adds one row after the other
    squares.index_add_(0, whose, sums.square().sum(1).double())

    def add(weights: Tensor, out: Tensor) -> None:
        table = out.view_as(layer.weight)
        table.index_add_(0, pairs % layer.num_embeddings, sums * weights[whose, None])

    return LayerGradient(squares.to(g.dtype), add)


def _norm(layer: Any, a: Tensor, g: Tensor) -> LayerGradient:
    """GroupNorm or LayerNorm: the gradient of the scale is Σ g x̂, that of the shift Σ g."""
    if isinstance(layer, nn.GroupNorm):
        normal = F.group_norm(a, layer.num_groups, eps=layer.eps)
        places = list(range(2, a.dim()))
    else:
        normal = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
        places = list(range(1, a.dim() - len(layer.normalized_shape)))
    grads = [g * normal] if layer.bias is None else [g * normal, g]
    return _from_gradients([(each.sum(places) if places else each).flatten(1) for each in grads])


def _from_gradients(grads: list[Tensor]) -> LayerGradient:
    """Return the contribution of per-example gradients that are materialised; each (n, size)."""

    def add(weights: Tensor, out: Tensor) -> None:
        sizes = [math.prod(g.shape[1:]) for g in grads]
        for part, g in zip(torch.split(out, sizes), grads, strict=True):
            part.addmv_(g.t(), weights)

    return LayerGradient(torch.stack([squared_lengths(g) for g in grads]).sum(0), add)
