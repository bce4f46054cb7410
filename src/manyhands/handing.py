"""Backward passes that begin with a gradient from elsewhere.

`torch.autograd.backward(y, gradient)` compares two shapes, and imports symbolic algebra for it: the
first time more than half a second, in every process, while others wait.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def handed(y: Tensor, gradient: Tensor) -> Tensor:
    """Return a number to go back from, whose gradient by `y` is `gradient`."""
    result: Tensor = _Handed.apply(y, gradient)  # type: ignore[no-untyped-call]
    return result


class _Handed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None
