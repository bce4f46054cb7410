"""A model as a chain of blocks, for the strategies that split it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from manyhands.errors import ConfigError


class Block(NamedTuple):
    """What cannot be cut: one layer with parameters, and what follows it without any.

    Attributes:
        name: The layer's name, by which `cut` knows it.
        modules: The layer, and what follows it, each with its place in the whole model.
    """

    name: str
    modules: list[tuple[int, nn.Module]]

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the modules one after the other."""
        for _, module in self.modules:
            x = module(x)
        return x

    def parameters(self) -> list[nn.Parameter]:
        """Return the trainable parameters."""
        trainable = [
            p for _, module in self.modules for p in module.parameters() if p.requires_grad
        ]
        return list(dict.fromkeys(trainable))


def blocks(model: nn.Module, strategy: str = "pipeline") -> list[Block]:
    """Return the blocks of a model, in the order in which data passes through them.

    Raises:
        ConfigError: The model is neither sequential nor has a method `stages()`; or its stages do
            not hold every parameter exactly once.
    """
    listed: list[Block] = []
    for place, (name, module) in enumerate(_chain(model, strategy)):
        begins = any(p.requires_grad for p in module.parameters())
        if not listed or (begins and listed[-1].parameters()):
            listed.append(Block(name, []))
        elif begins:  # before it came only what has no parameters
            listed[-1] = Block(name, listed[-1].modules)
        listed[-1].modules.append((place, module))
    _check(model, listed, strategy)
    return listed


def _chain(model: nn.Module, strategy: str) -> list[tuple[str, nn.Module]]:
    if hasattr(model, "stages"):
        names = {id(part): name for name, part in (*_layers(model), *model.named_modules())}
        stages: Callable[[], Sequence[nn.Module]] = model.stages  # type: ignore[assignment]
        # One that is made there has no name in the model: it has that of its first layer.
        known = ((str(i), m, next(m.parameters(), m)) for i, m in enumerate(stages()))
        return [(names.get(id(m), names.get(id(first), i)), m) for i, m, first in known]
    if isinstance(model, nn.Sequential):
        return list(model._modules.items())  # also what comes twice
    raise ConfigError(
        f"the model is a {type(model).__name__}, which {strategy} cannot cut: expected an "
        "nn.Sequential, or a method stages() that returns its modules in the order in which data "
        "passes through them, each taking one tensor and giving one"
    )


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each parameter with the name of its layer."""
    for name, p in model.named_parameters():
        yield name.rpartition(".")[0] or name, p


def _check(model: nn.Module, listed: Sequence[Block], strategy: str) -> None:
    """Refuse parameters that belong to no block, or to two."""
    owner: dict[int, str] = {}
    for block in listed:
        for p in block.parameters():
            if id(p) in owner:
                raise ConfigError(
                    f"{owner[id(p)]} and {block.name} share a weight, and {strategy} may put them "
                    "into two processes; untie them, or let one stage of stages() hold both"
                )
            owner[id(p)] = block.name
    lost = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in owner]
    if lost:
        raise ConfigError(f"{', '.join(lost)}: in none of the modules that stages() returns")
