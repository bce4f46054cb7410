"""Sums of clipped gradients for chains of known layers, in one backward pass.

The norm alone is enough for clipping. A fully connected layer's gradient for one example is the
outer product of what came in and what comes back, so its norm is the product of theirs (Goodfellow
2015, arXiv 1510.01799) and it is never made; `layer_sums.py` says what other layers do. A layer
that is not known is passed through by vmap, alone: each example on its own, so that it can mix
none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.config.privacy import ClippingWay
from manyhands.errors import ConfigError
from manyhands.privacy.clipping import coefficients
from manyhands.privacy.layer_sums import (
    POOLS,
    LayerGradient,
    Way,
    faster_way,
    is_altered,
    is_known,
    layer_gradient,
)

if TYPE_CHECKING:
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica

_CHAINS = (nn.Sequential, nn.ModuleList)  # and no subclass, whose forward could be anything
_LOSSES = (F.cross_entropy, F.nll_loss, F.mse_loss)  # means over the examples of a batch, and more
_IGNORED = -100  # the target that the first two pass over


class Trace(NamedTuple):
    """One forward pass: its output, and input and output of each layer with parameters."""

    y: Tensor
    inputs: list[Tensor]
    outputs: list[Tensor]


class Layerwise:
    """The clipped sum for a chain of layers that do not mix examples; made by `of`.

    Guarantees: the same sums as `PerExample`, up to rounding.
    """

    def __init__(
        self,
        replica: Replica,
        layers: list[nn.Module],
        *,
        chunk_mb: int,
        way: ClippingWay = "flat",
    ) -> None:
        self.replica, self.layers, self.chunk_mb, self.way = replica, layers, chunk_mb, way
        self.owners = [layer for layer in layers if _parameters(layer)]
        sizes = [sum(p.numel() for p in layer.parameters()) for layer in self.owners]
        ends = list(accumulate(sizes, initial=0))
        self.slices = [slice(start, stop) for start, stop in pairwise(ends)]
        self.ways: list[Way] = []  # of each layer with parameters, once measured
        self.chunk: int | None = None

    @classmethod
    def of(
        cls,
        replica: Replica,
        *,
        chunk_mb: int,
        example: Tree | None = None,
        way: ClippingWay = "flat",
    ) -> Layerwise | None:
        """Return the clipped sum for a chain of known layers and a known loss; None for others.

        With an example to try, some of the layers may be of any kind.
        """
        layers = list(_chain(replica.module))
        found = cls(replica, layers, chunk_mb=chunk_mb, way=way)
        if not cls.unknown(replica):
            return found
        if way == "per-layer":
            return None  # an unknown layer may consist of several
        some = any(is_known(layer) for layer in found.owners)
        whole = not _why_not_layerwise(replica, layers) and isinstance(example, Tensor)
        return found if some and whole and found._passes(example) else None

    def _passes(self, x: Any) -> bool:
        """Say whether one tensor goes from layer to layer, as a chain has it."""
        h, training = x[:1], self.replica.module.training
        self.replica.module.train()
        try:
            with torch.no_grad(), self.replica.undisturbed():
                for layer in self.layers:
                    h = _apply_layer(layer, h)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return False
        finally:
            self.replica.module.train(training)
        return True

    @staticmethod
    def unknown(replica: Replica) -> str:
        """Describe what is unknown in a model or its loss; empty if nothing is."""
        layers = list(_chain(replica.module))
        for layer in layers:
            if not is_known(layer):
                return f"{type(layer).__name__} is no layer that is known to keep examples apart"
        return _why_not_layerwise(replica, layers)

    def add(self, x: Tensor, y: Tensor, clip: float, out: Tensor) -> None:
        """Add the sum of the clipped gradients of all examples to `out`, (dim,)."""
        chunk = self.chunk_for(x)
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            rows = torch.arange(start, min(start + chunk, len(x)), device=x.device)
            self._add(x[part], y[part], clip, out, rows)

    def chunk_for(self, x: Tensor) -> int:
        """Return how many examples like these to process at a time."""
        if self.chunk is None:
            self.chunk = max(1, (self.chunk_mb << 20) // self._bytes(x[:1]))
        return self.chunk

    def _add(self, x: Tensor, y: Tensor, clip: float, out: Tensor, rows: Tensor) -> None:
        with self.replica.masked(rows):
            trace = self.forward(x)
        back = torch.autograd.grad(self.judge(trace, y), trace.outputs)
        parts = self.parts(trace.inputs, back)
        norms = torch.stack([part.squares for part in parts]).sqrt()
        weights, finite = coefficients(norms, clip, self.way)
        if finite is None:
            self.sum(parts, weights, out)
        elif bool(finite.any()):  # rare: without the others, since 0 × NaN is NaN
            self._add(x[finite], y[finite], clip, out, rows[finite])

    def forward(self, x: Tensor) -> Trace:
        """Pass examples through the chain."""
        inputs, outputs = [], []
        prepare = self.replica.prepare or _identity
        h = prepare(x)
        for layer in self.layers:
            # A first convolution of one channel forgets the layout; pooling is much faster in it.
            before = prepare(h) if isinstance(layer, POOLS) else h
            h = _apply_layer(layer, before)
            if _parameters(layer):
                inputs.append(before.detach())
                outputs.append(h)
        return Trace(h, inputs, outputs)

    def judge(self, trace: Trace, y: Tensor) -> Tensor:
        """Return the sum of the examples' losses."""
        loss = self.replica.loss
        target = _like(trace.y, y, loss)
        each = _rows(loss(trace.y, target, reduction="none"))
        if loss is F.mse_loss or target.is_floating_point():
            return each.mean(1).sum()
        # A mean over all would be one over what is not ignored: one record in everybody's gradient.
        counted = _rows(target != _IGNORED).sum(1).clamp(min=1)
        return (each.sum(1) / counted).sum()

    def parts(self, inputs: Sequence[Tensor], back: Sequence[Tensor]) -> list[LayerGradient]:
        """Return each layer's contribution, from its input and its output's gradient."""
        each = list(zip(self.owners, inputs, back, strict=True))
        with torch.no_grad():
            self.ways = self.ways or [faster_way(*one) for one in each]
            return [layer_gradient(*one, way) for one, way in zip(each, self.ways, strict=True)]

    def sum(self, parts: Sequence[LayerGradient], weights: Tensor, out: Tensor) -> None:
        """Add the weighted sum of the examples' gradients to `out`; weights: ([layers,] n)."""
        each = weights.expand(len(parts), weights.shape[-1])
        for where, part, factors in zip(self.slices, parts, each, strict=True):
            part.add(factors, out[where])

    def _bytes(self, x: Tensor) -> int:
        """Return the approximate size of one example's intermediate results."""
        count, h = x.numel(), x
        with torch.no_grad():
            for layer in self.layers:
                h = _apply_layer(layer, h)
                count += 2 * h.numel()
                if isinstance(layer, nn.Conv2d):
                    count += layer.weight[0].numel() * h[0, 0].numel()
                if not isinstance(layer, nn.Linear) or h.dim() > 2:  # gradients that may be made
                    count += sum(p.numel() for p in layer.parameters())
        return int(count * self.replica.params.element_size())


def _rows(values: Tensor) -> Tensor:
    """Return one row per example; shape (n, any)."""
    return values[:, None] if values.dim() == 1 else values.flatten(1)


def _like(h: Tensor, y: Tensor, loss: Any) -> Tensor:
    """Return the targets in the outputs' shape, where the loss would broadcast them.

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


def _identity(x: Tensor) -> Tensor:
    return x


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested `nn.Sequential`s, or of a stage, in the order of application."""
    plain = type(module) in _CHAINS and not is_altered(module)
    if isinstance(module, nn.Sequential | nn.ModuleList) and plain:
        for layer in module:
            yield from _chain(layer)
    else:
        yield module


def _parameters(layer: nn.Module) -> bool:
    return next(layer.parameters(), None) is not None


def _apply_layer(layer: Any, x: Tensor) -> Tensor:
    """Pass examples through a layer; through an unknown one, each on its own.

    One that is not known and draws random numbers is an error: it would draw others for its
    gradient (`parts.layer_gradient`).
    """
    if is_known(layer):
        return cast("Tensor", layer(x))

    def one(x: Tensor) -> Tensor:
        y = layer(x.clone()[None])  # a copy, for layers that overwrite what they are given
        if not isinstance(y, Tensor):
            raise TypeError(f"{type(layer).__name__} gives no tensor")
        return y[0]

    return torch.func.vmap(one, randomness="error")(x)


def _why_not_layerwise(replica: Replica, layers: Sequence[nn.Module]) -> str:
    """Describe what rules out a layer-by-layer pass; empty if nothing does."""
    if replica.loss not in _LOSSES:
        losses = ", ".join(loss.__name__ for loss in _LOSSES)
        return f"the loss is none of those that are known to be means over examples: {losses}"
    flat = [p for layer in layers for p in layer.parameters()]
    if [id(p) for p in flat] != [id(p) for _, p in replica.named]:
        return "a parameter is frozen, shared, or not of the chain of layers"
    return ""
