"""Canaries for an audit: examples that leave the strongest trace that clipping allows.

A Dirac canary's gradient points along one axis of its own, whatever the parameters are, and is ten
times longer than the clipping norm. With plain SGD the final model then holds, at that axis, the
sum over all steps of what the mechanism let through plus its noise: the best view an attacker can
have of one example (Nasr et al. 2023, arXiv 2302.07956).

A mislabelled digit is an example like any other, in a model like any other. Its gradient is known
to whoever knows the first model, and with small steps stays what it is; so who was in is found by
least squares from the way that the parameters went.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

LENGTH = 10.0  # of a canary's gradient, in clipping norms


class Axes(nn.Module):
    """One parameter for each canary; an example's output is the parameter with its number."""

    def __init__(self, canaries: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(canaries))

    def forward(self, x: Tensor) -> Tensor:
        """Return the parameters that the numbers `x` stand for; both (n, 1)."""
        return self.weight[x]


class Planted:
    """What builds the model of an audit in every worker; `before` runs there first, if given."""

    def __init__(
        self, build: Callable[[], nn.Module], before: Callable[[], None] | None = None
    ) -> None:
        self.build, self.before = build, before

    def __call__(self) -> nn.Module:
        """Return the model."""
        if self.before:
            self.before()
        return self.build()


class Pull:
    """The loss whose gradient is LENGTH clipping norms along an example's own axis."""

    def __init__(self, clip: float) -> None:
        self.length = LENGTH * clip

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean over the examples; targets do not matter."""
        return self.length * output.mean()


def coins(canaries: int, seed: int) -> np.ndarray:
    """Return which canaries are in, each by a fair coin; (canaries,) bool."""
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
    """Return how much of each canary the way Σ_i b_i u_i + noise holds; b_i is 0 or 1; (n,).

    The best linear guess, given that noise of this variance and a fair coin for each b_i.
    """
    gram = u @ u.t() + 4 * variance * torch.eye(len(u), dtype=u.dtype)
    centred = u @ (way - u.sum(0) / 2)
    return np.asarray((torch.linalg.solve(gram, centred) + 0.5).numpy())
