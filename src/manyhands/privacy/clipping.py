"""Sums of clipped per-example gradients, by vmap over the functional model, in chunks.

Three ways to scale an example's gradient g, with its layers g_1 … g_L; each leaves a norm of at
most C, so that the sensitivity of the sum, and all accounting, is the same:

    flat        g · min(1, C/‖g‖)                            (Abadi et al. 2016, arXiv 1607.00133)
    automatic   g · C/(‖g‖ + 0.01)                           (Bu et al. 2022, arXiv 2206.07136)
    per-layer   g_l · min(1, C_l/‖g_l‖) for each layer l     (McMahan et al. 2018, arXiv 1710.06963)
                with C_l = C/√L, so that √Σ C_l² = C
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from manyhands.config.privacy import ClippingWay
from manyhands.data import batch_tree
from manyhands.errors import ConfigError
from manyhands.model.batchnorm import batch_norms, kind
from manyhands.model.layers import track_forward
from manyhands.privacy.layer_sums import squared_lengths

_SAME = 1e-3  # of a gradient: more than kernels of a GPU differ from one pass to the next

STABILISER = 0.01  # in automatic clipping: small gradients are not scaled up without bound

if TYPE_CHECKING:
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica


class PerExample:
    """The clipped sum for any model that `torch.func.vmap` can handle.

    Guarantees:
        - No example contributes more than C; its norm is over its whole gradient, of all layers
          together, except per layer.
        - An example whose gradient is not finite contributes zero.
        - Gradients of single examples take no more memory than `chunk_mb`, or one example's.
    """

    def __init__(self, replica: Replica, *, chunk_mb: int, way: ClippingWay = "flat") -> None:
        self.replica, self.way = replica, way
        self.names = [name for name, _ in replica.named]
        starts = accumulate((p.numel() for _, p in replica.named), initial=0)
        self.owners = torch.tensor(  # the layer of each parameter
            [
                next(i for i, la in enumerate(replica.layers) if la.start <= start < la.stop)
                for start, _ in zip(starts, replica.named, strict=False)
            ],
            device=replica.params.device,
        )
        size = 2 * replica.dim * replica.params.element_size()  # gradients, and their squares
        self.chunk = max(1, (chunk_mb << 20) // size)

    def gradients(self, x: Tree, y: Tree, mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return the gradients of single examples, of each parameter (n, …).

        `mask`: what their dropout masks depend on, (n,); None to let PyTorch draw them.
        """
        params = tuple(p.detach() for _, p in self.replica.named)
        axes = (None, 0, 0, None if mask is None else 0)
        each = torch.func.vmap(torch.func.grad(self._loss), axes, randomness="different")
        found: tuple[Tensor, ...] = each(params, x, y, mask)
        return found

    def _loss(self, params: tuple[Tensor, ...], x: Tree, y: Tree, mask: Tensor | None) -> Tensor:
        named = dict(zip(self.names, params, strict=True))
        module = self.replica.module

        def model(*args: Tensor, **kwargs: Tensor) -> Any:
            return torch.func.functional_call(module, named, args, kwargs)

        masks = self.replica.masks
        with nullcontext() if mask is None or masks is None else masks.single(mask):
            output = batch_tree.call_model(
                model, batch_tree.map_tensors(lambda leaf: leaf[None], x)
            )
            return self.replica.loss(output, batch_tree.map_tensors(lambda leaf: leaf[None], y))

    def add(self, x: Tree, y: Tree, clip: float, out: Tensor) -> None:
        """Add the sum of the clipped gradients of all examples to `out`, (dim,)."""
        hashes = self.replica.masks.hashes() if self.replica.masks else None
        for start in range(0, batch_tree.count_examples(x), self.chunk):
            part = slice(start, start + self.chunk)
            mask = None if hashes is None else hashes[part]
            with self.replica.masked(part):
                found = self.gradients(*batch_tree.take_examples(x, y, part), mask)
            grads = [g.flatten(1) for g in found]  # (n, size)
            each = torch.stack([squared_lengths(g) for g in grads])
            squares = each.new_zeros(len(self.replica.layers), each.shape[1])
            squares.index_add_(0, self.owners, each)
            weights, finite = coefficients(squares.sqrt(), clip, self.way)
            weights = weights.expand(squares.shape)
            offset = 0
            for g, owner in zip(grads, self.owners.tolist(), strict=True):
                kept = g if finite is None else torch.where(finite[:, None], g, 0.0)
                stop = offset + g.shape[1]
                out[offset:stop].add_(weights[owner] @ kept)
                offset = stop


def coefficients(
    norms: Tensor, clip: float, way: ClippingWay = "flat"
) -> tuple[Tensor, Tensor | None]:
    """Return the clipping factors for these norms, zero where an example is not finite.

    Args:
        norms: Of whole gradients, (n,), or of their layers, (layers, n).
        clip: C.
        way: How to clip; per layer needs the layers' norms.

    Returns:
        The factors, (n,) or per layer (layers, n), and which examples are finite; None where all
        are, which is nearly always.
    """
    if way == "per-layer":
        finite = torch.isfinite(norms).all(0)
        factors = torch.clamp(clip / math.sqrt(len(norms)) / norms, max=1.0)
    else:
        whole = norms if norms.dim() == 1 else torch.linalg.vector_norm(norms, dim=0)
        finite = torch.isfinite(whole)
        automatic = way == "automatic"
        factors = clip / (whole + STABILISER) if automatic else torch.clamp(clip / whole, max=1.0)
    if bool(finite.all()):
        return factors, None
    return torch.where(finite, factors, 0.0), finite


def refuse(module: nn.Module) -> None:
    """Refuse layers that mix the examples of a batch, naming them."""
    for name, layer in batch_norms(module):
        raise ConfigError(
            f"layer {name!r} is {kind(layer)}, which mixes the examples of a batch, so that none "
            "has a gradient of its own; a private model can use GroupNorm"
        )
    for name, layer in module.named_modules():
        if getattr(layer, "track_running_stats", False):
            raise ConfigError(
                f"layer {name!r} ({type(layer).__name__}) keeps statistics of the data without "
                "noise; give it track_running_stats=False, or use GroupNorm"
            )


def probe(replica: Replica, x: Tree, y: Tree) -> None:
    """Try two examples; refuse layers that vmap cannot handle or that keep traces of them."""
    before = {name: buffer.clone() for name, buffer in replica.module.named_buffers()}
    first, last = slice(1), slice(batch_tree.count_examples(x) - 1, None)
    with replica.undisturbed(), track_forward(replica.module) as entered:
        try:
            fresh, _, again = (_try_example(replica, x, y, row) for row in (first, last, first))
        except (RuntimeError, ValueError, NotImplementedError) as error:
            name, layer = entered[-1] if entered else ("", replica.module)
            where = f"layer {name!r} ({type(layer).__name__})" if name else type(layer).__name__
            said = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise ConfigError(
                f"{where} has no gradients of single examples that torch.func can compute: {said}; "
                "a private run needs another layer in its place"
            ) from error
        changed = [n for n, b in replica.module.named_buffers() if not torch.equal(b, before[n])]
    if changed:
        raise ConfigError(
            f"buffer {changed[0]!r} of the model changes with the data and has no noise; a private "
            "model keeps no statistics: use GroupNorm, or make it a constant"
        )
    if float((again - fresh).norm()) > _SAME * float(fresh.norm()):
        raise ConfigError(
            "an example's gradient is another one after the model has seen another example: the "
            "model, or its loss, remembers examples, and what it remembers has no noise; a private "
            "run needs one that does not"
        )


def _try_example(replica: Replica, x: Tree, y: Tree, row: slice) -> Tensor:
    """Return an example's gradient, with the same random numbers each time."""
    torch.manual_seed(0)  # `undisturbed` puts back what was
    out = torch.zeros_like(replica.params)
    PerExample(replica, chunk_mb=1).add(*batch_tree.take_examples(x, y, row), math.inf, out)
    return out
