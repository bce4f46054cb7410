"""Gradients that are moved into a vector while the backward pass still computes the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from manyhands.errors import WorkerError

if TYPE_CHECKING:
    from torch import Tensor, nn


class EarlyGradients:
    """Moves each parameter's gradient into a vector once backward has it, and reports it.

    A gradient moves when autograd has accumulated all of it: a tied parameter's once, after its
    last use. Backward passes outside of `fill` move and report nothing.

    Args:
        named: The parameters, by name.
        vector: Where they move to, one after the other; it may be longer.
        ready: Is called with a parameter's number once its gradient is in its place.
        check: Is called with that number before the gradient moves, and refuses it by raising.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        vector: Tensor,
        ready: Callable[[int], None],
        check: Callable[[int], None] = lambda number: None,
    ) -> None:
        counts = [p.numel() for _, p in named]
        parts = zip(torch.split(vector[: sum(counts)], counts), named, strict=True)
        self._named, self._views = named, [part.view(p.shape) for part, (_, p) in parts]
        self._ready, self._check = ready, check
        self._weight: float | None = None
        self._moved = [False] * len(named)
        self._broken = False
        self._hooks = [
            p.register_post_accumulate_grad_hook(partial(self._accumulated, number))  # type: ignore[no-untyped-call]
            for number, (_, p) in enumerate(named)
        ]

    def fill(self, backward: Callable[[], None], weight: float) -> None:
        """Call `backward`; then the vector holds all gradients, times `weight`.

        A parameter without a gradient has zeros. With weight 0 all have, also those that are not
        finite. If `backward` raises when gradients were reported, there is no next call.
        """
        if self._broken:
            raise WorkerError(
                "an earlier backward pass failed while its gradients were under way to the other "
                "workers, so this worker cannot take another step; expected the script to end"
            )
        for number in range(len(self._named)):  # what an earlier backward pass has left
            self._check(number)
        self._moved = [False] * len(self._named)
        self._weight = weight
        try:
            backward()
        except BaseException:
            self._broken = any(self._moved)
            raise
        finally:
            self._weight = None
        for number, moved in enumerate(self._moved):
            if not moved:
                self._move(number, weight)

    def close(self) -> None:
        """Take the hooks off the parameters."""
        while self._hooks:
            self._hooks.pop().remove()

    def _accumulated(self, number: int, _: Tensor) -> None:
        if self._weight is not None:
            self._check(number)
            self._move(number, self._weight)
            self._moved[number] = True
            self._ready(number)

    def _move(self, number: int, weight: float) -> None:
        (_, p), view = self._named[number], self._views[number]
        gradient = p.grad
        if gradient is None or not weight:
            view.zero_()
            return
        if gradient.layout != torch.strided:
            gradient = gradient.to_dense()
        if weight == 1.0:
            view.copy_(gradient)
        else:
            torch.mul(gradient, weight, out=view)
