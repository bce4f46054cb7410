"""A model's layers: their slices of the flat vector, and the one that a pass is in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Layer(NamedTuple):
    """The parameters of one module (its weight and bias together), as a slice of the vector."""

    name: str
    start: int
    stop: int


def find_layers(named: Iterable[tuple[str, nn.Parameter]]) -> tuple[Layer, ...]:
    """Return the layers of a model whose parameters follow each other in one vector."""
    layers: list[Layer] = []
    start = 0
    for name, p in named:
        owner = name.rpartition(".")[0] or name
        stop = start + p.numel()
        if layers and layers[-1].name == owner:
            layers[-1] = Layer(owner, layers[-1].start, stop)
        else:
            layers.append(Layer(owner, start, stop))
        start = stop
    return tuple(layers)


def view_parameters(vector: Tensor, named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Tensor]:
    """Return each parameter's part of a vector as a view in its shape; the rest is left out."""
    views: dict[str, Tensor] = {}
    start = 0
    for name, p in named:
        stop = start + p.numel()
        views[name] = vector[start:stop].view(p.shape)
        start = stop
    return views


@contextmanager
def track_forward(module: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    """Yield a list of the layers that the forward pass is in now, outermost first."""
    stack: list[tuple[str, nn.Module]] = []
    hooks: list[Any] = []
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):  # it takes no hooks
            continue
        hooks += [
            layer.register_forward_pre_hook(lambda m, _, name=name: stack.append((name, m))),
            layer.register_forward_hook(lambda *_: stack.pop() and None),
        ]
    try:
        yield stack
    finally:
        for hook in hooks:
            hook.remove()
