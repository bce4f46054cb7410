"""Canaries for an audit: examples with the strongest trace that clipping allows.

A Dirac canary's gradient points in one direction of its own, and is ten times longer than the
clipping norm. With plain SGD the final model then holds, in that direction, the sum over all steps
of what the mechanism let through plus its noise: the best view an attacker can have of one example
(Nasr et al. 2023, arXiv 2302.07956). They are examples of a model of plain layers, so they go
through the very code that clips such models, cut into stages or not.

A mislabelled digit is an example like any other, in a model like any other. Its gradient is known
to whoever knows the first model, and with small steps stays what it is; so who was in is found by
least squares from the way that the parameters went.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

LENGTH = 10.0  # of a canary's gradient, in clipping norms


class Opaque(nn.Sequential):
    """Layers in a row, of an unknown class: only vmap can compute per-example gradients."""


def chain(side: int, depth: int, *, opaque: bool) -> nn.Sequential:
    """Return `depth` layers of side × side weights that pass their input on.

    By the loss −output[j] (`nll_loss`) the example a·e_i of class j has the gradient −a e_j e_iᵀ in
    every layer, whose length over all of them is a √depth: side² directions, at right angles, that
    stay what they are while the layers stay close to the identity.
    """
    layers = [nn.Linear(side, side, bias=False) for _ in range(depth)]
    for layer in layers:
        nn.init.eye_(layer.weight)
    return (Opaque if opaque else nn.Sequential)(*layers)


def dirac(canaries: int, clip: float) -> tuple[np.ndarray, np.ndarray]:
    """Return examples of a chain whose gradients have distinct directions."""
    side = math.isqrt(canaries - 1) + 1
    classes, places = np.divmod(np.arange(canaries), side)
    return LENGTH * clip * np.eye(side, dtype=np.float32)[places], classes.astype(np.int64)


def projections(module: nn.Module, canaries: int) -> np.ndarray:
    """Return how far a chain moved against each canary's gradient; (canaries,)."""
    ways = [(p - torch.eye(len(p))).detach().flatten() for p in module.parameters()]
    return np.asarray((torch.stack(ways).sum(0) / math.sqrt(len(ways)))[:canaries].numpy())


class AuditModel:
    """Builds the audited model in every worker; `before` runs there first, if given."""

    def __init__(
        self, build: Callable[[], nn.Module], before: Callable[[], None] | None = None
    ) -> None:
        self.build, self.before = build, before

    def __call__(self) -> nn.Module:
        """Return the model."""
        if self.before:
            self.before()
        return self.build()


def coins(canaries: int, seed: int) -> np.ndarray:
    """Return which canaries are included, each by a fair coin; (canaries,) bool."""
    drawn: np.ndarray = np.random.default_rng(seed).random(canaries) < 0.5
    return drawn


def directions(
    module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, clip: float
) -> Tensor:
    """Return every example's clipped gradient in clipping norms; shape (n, dim)."""
    params = {name: p.detach() for name, p in module.named_parameters()}

    def one(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(torch.func.functional_call(module, params, (x[None],)), y[None])

    grads = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(params, x, y)
    rows = torch.cat([grads[name].flatten(1) for name in params], 1)
    return rows / clip * torch.clamp(clip / rows.norm(dim=1, keepdim=True), max=1.0)


def least_squares(u: Tensor, way: Tensor, variance: float) -> np.ndarray:
    """Return the amount of each canary in Σ_i b_i u_i + noise; b_i is 0 or 1; (n,).

    The best linear guess, given that noise of this variance and a fair coin for each b_i.
    """
    gram = u @ u.t() + 4 * variance * torch.eye(len(u), dtype=u.dtype)
    centred = u @ (way - u.sum(0) / 2)
    return np.asarray((torch.linalg.solve(gram, centred) + 0.5).numpy())
