"""The learning rate over a run: it rises to its full value, then stays or falls.

The rate depends only on how much of the run is done, from 0 to 1, never on who asks: workers that
step together have the same, others the one of their own position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

KINDS = ("constant", "linear", "cosine", "step")
SCALINGS = ("none", "linear", "sqrt")


@dataclass(frozen=True)
class Rate:
    """What the optimizer's learning rate is multiplied by.

    Attributes:
        kind: constant; linear and cosine fall to zero at the end; step divides by ten after one
            half and after three quarters of the run.
        warmup: The part of the run over which the rate rises from zero.
        scale: A factor throughout, where the rate grows with the workers.
        steps: How many updates the run has.
    """

    kind: str = "constant"
    warmup: float = 0.0
    scale: float = 1.0
    steps: int = 1

    def at(self, step: float) -> float:
        """Return the factor for the update that follows `step` others."""
        done = min(1.0, step / self.steps)
        if done < self.warmup:
            # The first update has a rate already, or it would change nothing.
            return self.scale * (step + 1) / (self.warmup * self.steps + 1)
        rest = (done - self.warmup) / (1.0 - self.warmup) if self.warmup < 1.0 else 1.0
        return self.scale * self._after(rest)

    def _after(self, rest: float) -> float:
        if self.kind == "linear":
            return 1.0 - rest
        if self.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * rest))
        if self.kind == "step":
            return float(10.0 ** -((rest >= 0.5) + (rest >= 0.75)))
        return 1.0

    def set(self, optimizer: Any, step: float) -> None:
        """Give the optimizer its rate for the update that follows `step` others."""
        factor = self.at(step)
        for group in optimizer.param_groups:
            group["lr"] = factor * group.setdefault("initial_lr", group["lr"])


def scale(kind: str, workers: int) -> float:
    """Return by how much the rate grows with the workers."""
    return {"none": 1.0, "linear": float(workers), "sqrt": math.sqrt(workers)}[kind]
