"""The outer optimizer: what to do with the workers' average difference.

```
sgd:    b ← μ b + Δ;   θ ← θ − ν (Δ + μ b)                    (Nesterov)
adam:   m ← μ m + (1 − μ) Δ;   v ← β v + (1 − β) Δ²
        θ ← θ − ν m̂ / (√v̂ + ε)                               m̂ = m / (1 − μⁿ),  v̂ = v / (1 − βⁿ)
none:   θ ← θ − Δ, the average
```

θ: the common parameters; Δ: θ minus the average of the workers' parameters; ν: outer rate; μ: outer
momentum; β = 0.99; ε = 0.1, DiLoCo's, since Δ has few and large steps; n: outer steps so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

Kind = Literal["none", "sgd", "adam"]
RATES: dict[str, float] = {"none": 1.0, "sgd": 0.7, "adam": 0.3}
MOMENTUM = 0.9
BETA, EPSILON = 0.99, 0.1
_MOMENTS: dict[str, tuple[str, ...]] = {"none": (), "sgd": ("b",), "adam": ("m", "v")}


@dataclass
class Outer:
    """The common parameters and their optimizer, element-wise and one fragment at a time.

    Attributes:
        kind: Which optimizer.
        rate: ν.
        momentum: μ.
        theta: θ; shape (dim,).
        parts: Each fragment's place in θ.
        moments: What the optimizer remembers, by name; each of shape (dim,).
        steps: The outer steps of each fragment.
        error: The largest relative error of an exchange, from its precision.
    """

    kind: Kind
    rate: float
    momentum: float
    theta: Tensor
    parts: list[slice]
    moments: dict[str, Tensor] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    error: float = 0.0

    def __post_init__(self) -> None:
        names = () if self.kind == "sgd" and not self.momentum else _MOMENTS[self.kind]
        self.moments = {name: self.theta.new_zeros(len(self.theta)) for name in names}
        self.steps = [0] * len(self.parts)

    def step(self, delta: Tensor, fragment: int = 0) -> None:
        """Move the fragment's common parameters along its Δ."""
        self.steps[fragment] += 1
        part, n, mu = self.parts[fragment], self.steps[fragment], self.momentum
        theta = self.theta[part]
        if self.kind == "adam":
            m = self.moments["m"][part].mul_(mu).add_(delta, alpha=1 - mu)
            v = self.moments["v"][part].mul_(BETA).addcmul_(delta, delta, value=1 - BETA)
            root = (v / (1 - BETA**n)).sqrt_().add_(EPSILON)
            theta.addcdiv_(m, root, value=-self.rate / (1 - mu**n))
            return
        if self.moments:
            b = self.moments["b"][part].mul_(mu).add_(delta)
            delta = delta.add(b, alpha=mu)
        theta.sub_(delta, alpha=self.rate)

    def facts(self) -> dict[str, Any]:
        """Return what the record says."""
        return {"steps": sum(self.steps), "error": self.error}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and numbers for a checkpoint."""
        moments = {f"outer.{name}": moment for name, moment in self.moments.items()}
        return {"theta": self.theta, **moments}, {"steps": self.steps, "error": self.error}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self.theta.copy_(tensors["theta"])
        for name, moment in self.moments.items():
            moment.copy_(tensors[f"outer.{name}"])
        self.steps, self.error = list(numbers["steps"]), numbers["error"]


def split(dim: int, fragments: int) -> list[slice]:
    """Return the places of so many fragments of about equal length."""
    bounds = [dim * p // fragments for p in range(fragments + 1)]
    return [slice(a, b) for a, b in pairwise(bounds)]
