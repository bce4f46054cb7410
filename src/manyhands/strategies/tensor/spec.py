"""What validation reads of tensor parallelism: its facts, and what its options refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from manyhands.config.optimizers import SGD, Adam, AdamW
from manyhands.config.strategy_spec import StrategySpec, Supports
from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from manyhands.config.run import RunConfig


class TensorSpec(StrategySpec):
    """The facts and checks of `TensorParallel`; the options themselves are declared there."""

    supports: ClassVar[Supports] = Supports(
        equals_one=True,
        resume=True,
        workers=1,
        beside="slice",
        lacks={
            "model_loss": "has no process with the whole model",
            "tensors": "passes one tensor from layer to layer",
            "accumulate": "sums activations of whole batches within a team",
            "autocast": "sums float32 within a team",
            "sync_batchnorm": "normalises a team's whole batch, and sums no statistics over teams",
            "clip_norm": "has nobody with the whole gradient, and so its length",
        },
    )

    slices: int

    def validate(self, config: RunConfig) -> None:
        """Refuse what would not be the same for a layer in slices."""
        reasons = {
            "slow": "the processes of a team wait for each other in the middle of a gradient",
        }
        for name, reason in reasons.items():
            if (value := getattr(config, name)) is not None:
                raise ConfigError(f"{name} is {value!r}, but in tensor {reason}; leave it out")
        if config.kernels == "compile":
            raise ConfigError("kernels is 'compile', which tensor cannot use; leave it out")
        if not isinstance(config.optimizer, SGD | Adam | AdamW):
            raise ConfigError(
                "tensor cuts layers, so the optimizer must treat every number alone; expected sgd, "
                "adam or adamw"
            )

    def check_module(self, module: nn.Module) -> None:
        """Refuse a module that is no chain of layers."""
        from manyhands.strategies.model_blocks import blocks

        blocks(module, self.name)

    def processes(self, workers: int) -> int:
        """Return the processes of all teams."""
        return workers * self.slices

    def follows(self, rank: int, workers: int) -> int:
        """Return which team a process is of: rank k·W + w holds slice k in team w."""
        return rank % workers
