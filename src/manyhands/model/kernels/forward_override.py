"""Another way for a layer to compute: given to it, known again, taken back.

It is a partial function in the layer's own dictionary: its class, hooks and parameters stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

if TYPE_CHECKING:
    from torch import nn

Way = Callable[..., Any]
Function = TypeVar("Function", bound=Way)


def unobserved(function: Function) -> Function:
    """Let no torch-function mode see what `function` calls: looking takes a while per call."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return cast("Function", call)


def give(layer: nn.Module, way: Way, *bound: Any) -> None:
    """Let a layer compute by `way`, whose last argument is the layer's input."""
    layer.__dict__["forward"] = partial(way, *bound)


def changed(layer: nn.Module, *ways: Way) -> bool:
    """Say whether a layer computes by one of these ways."""
    forward = layer.__dict__.get("forward")
    return isinstance(forward, partial) and forward.func in ways


def patched(layer: nn.Module, *ways: Way) -> bool:
    """Say whether somebody has given it another way to compute than these."""
    return "forward" in layer.__dict__ and not changed(layer, *ways)


def remove(module: nn.Module, *ways: Way) -> None:
    """Let all layers that compute by these ways compute as their class does."""
    for layer in module.modules():
        if changed(layer, *ways):
            del layer.__dict__["forward"]
