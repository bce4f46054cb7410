"""Models that an audit trains, so that every kind of layer and of clipping is tried."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from manyhands import value_checks

Clipping = Literal["layers", "vmap", "stages"]
WORDS, LENGTH, CLASSES = 9, 12, 4
_LOUD = 30.0  # times the last weights: so gradients are longer than the clipping norm


class Opaque(nn.Module):
    """Layers of an unknown class, with a parameter of its own: only vmap can clip them."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.scale = layers, nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layers' output, scaled."""
        return cast("Tensor", self.layers(x) * self.scale)


def layers() -> nn.Sequential:
    """Return a chain with an embedding, a convolution, norms, weights and biases."""
    chain = nn.Sequential(
        nn.Embedding(WORDS, 6),
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * (LENGTH - 2) * 4, 16),
        nn.LayerNorm(16),
        nn.Tanh(),
        nn.Linear(16, CLASSES),
    )
    with torch.no_grad():
        last = cast("nn.Linear", chain[-1])
        last.weight *= _LOUD
    return chain


def build(clipping: Clipping) -> nn.Module:
    """Return the model that is clipped in this way."""
    return Opaque(layers()) if clipping == "vmap" else layers()


class AuditModel:
    """Builds an audited model in every worker; `before` runs there first, and starts recording.

    Args:
        build: Makes the model, or is it.
        before: Runs before that.
    """

    observed = True  # what it records has no noise: no budget allows that

    def __init__(
        self, build: Callable[[], nn.Module] | nn.Module, before: Callable[[], None]
    ) -> None:
        self.build, self.before = build, before

    def __call__(self) -> nn.Module:
        """Return the model."""
        self.before()
        return self.build if isinstance(self.build, nn.Module) else self.build()


def make(clipping: Clipping, before: Callable[[], None]) -> AuditModel:
    """Return the audited model that is clipped in this way."""
    value_checks.one_of(get_args(Clipping), clipping=clipping)
    return AuditModel(partial(build, clipping), before)


def make_records(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return records for these models: rows of random words, and random classes."""
    random = np.random.default_rng([seed, 2])
    x = random.integers(0, WORDS, (count, 1, LENGTH))
    return x, random.integers(0, CLASSES, count)
