"""Canaries for an audit: examples that leave the strongest trace that clipping allows.

A Dirac canary's gradient points along one axis of its own, whatever the parameters are, and is ten
times longer than the clipping norm. With plain SGD the final model then holds, at that axis, the
sum over all steps of what the mechanism let through plus its noise: the best view an attacker can
have of one example (Nasr et al. 2023, arXiv 2302.07956).
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

    def __init__(self, canaries: int, before: Callable[[], None] | None) -> None:
        self.canaries, self.before = canaries, before

    def __call__(self) -> nn.Module:
        """Return the model."""
        if self.before:
            self.before()
        return Axes(self.canaries)


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
