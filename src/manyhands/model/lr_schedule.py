"""The learning rate over a run: it rises to its full value, then stays or falls.

The rate depends only on how much of the run is done, from 0 to 1, never on who asks: workers that
step together have the same, others the one of their own position.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manyhands.config.optimizers import SGD
from manyhands.errors import ConfigError

_POWERS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5, "inverse": -1.0}


@dataclass(frozen=True)
class Rate:
    """The factor of the optimizer's learning rate over a run.

    Attributes:
        kind: constant; linear and cosine fall to zero at the end; step divides by ten after one
            half and after three quarters of the run.
        warmup: The part of the run over which the rate rises from zero.
        scale: A factor throughout, where the rate follows the workers.
        steps: How many updates the run has.
        table: The factor for each of them, where a scheduler of torch decides.
    """

    kind: str = "constant"
    warmup: float = 0.0
    scale: float = 1.0
    steps: int = 1
    table: tuple[float, ...] = ()

    def at(self, step: float) -> float:
        """Return the factor for the update after `step` others."""
        if self.table:
            return self.scale * self.table[min(int(step + 1e-6), len(self.table) - 1)]
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
        """Set the optimizer's rate for the update after `step` others."""
        factor = self.at(step)
        for group in optimizer.param_groups:
            group["lr"] = factor * group.setdefault("initial_lr", group["lr"])


def tabulate(factory: Callable[..., Any], optimizer: Any, steps: int) -> tuple[float, ...]:
    """Return the factors of a torch scheduler, update by update.

    It is tried out beforehand on an optimizer without a model, so that the rate stays a function of
    how much of the run is done, for workers that do not step together and for runs that go on.

    Args:
        factory: A function of (optimizer) or of (optimizer, steps) that returns the scheduler.
        optimizer: The run's; only its learning rate is read.
        steps: How many updates there are.

    Raises:
        ConfigError: If it looks at how the model does, or changes more than the learning rate.
    """
    from torch import nn, zeros
    from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

    base = float(optimizer.param_groups[0]["lr"])
    tried = SGD(lr=base).build([nn.Parameter(zeros(1))])
    parameters = inspect.signature(factory).parameters
    needed = [p for p in parameters.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    two = len(needed) > 1 or "steps" in parameters
    scheduler = factory(tried, steps) if two else factory(tried)
    name = type(scheduler).__name__
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError(
            f"schedule gave a {name}; expected a scheduler of torch.optim.lr_scheduler that counts "
            "updates and does not look at the model"
        )
    (group,) = tried.param_groups
    kept = {key: value for key, value in group.items() if key in _OTHERS}
    table = []
    for _ in range(steps):
        if any(group[key] != value for key, value in kept.items()):
            raise ConfigError(
                f"schedule {name} changes more than the learning rate; give it cycle_momentum=False"
            )
        table.append(float(group["lr"]) / base)
        tried.step()
        scheduler.step()
    return tuple(table)


_OTHERS = ("momentum", "weight_decay", "dampening", "nesterov")


def lr_scale(kind: str, workers: int) -> float:
    """Return the learning rate's factor for so many workers."""
    return float(workers ** _POWERS[kind])
