"""One stage of a model: a replica of consecutive layers, whose other layers are elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from manyhands.model.kernels.autograd import go_back
from manyhands.model.replica import Loss, Replica
from manyhands.strategies.model_part import Portion, spans

if TYPE_CHECKING:
    from manyhands.privacy.staged import Staged
    from manyhands.strategies.pipeline.partition import Block


Spending = Callable[[str, int | None], AbstractContextManager[None]]


class Passes:
    """How a stage passes micro-batches forward and back: by autograd, which adds up in `grad`.

    Whoever computes otherwise (`privacy/staged.py`) is put in this one's place.

    Attributes:
        tells: Whether losses, and what single steps take, may be noted.
    """

    tells = True

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.held: dict[int, tuple[Tensor, Tensor]] = {}  # what entered and what left
        self.shares: dict[int, Tensor] = {}  # of the update; the last stage's

    def begin(self) -> None:
        """Begin a step."""
        self.stage.grad.zero_()

    def forward(self, i: int, x: Tensor, *key: int) -> Tensor:
        """Return what leaves the stage; `key` decides what its random layers draw."""
        y = self.stage.compute(x, *key)
        self.held[i] = x, y
        return y

    def judge(self, i: int, target: Tensor, total: int) -> Loss | None:
        """Let the loss leave, to go back by the micro-batch's share of the update; return it."""
        x, y = self.held[i]
        loss = self.stage.loss(y, target)
        count = len(target)
        self.held[i], self.shares[i] = (x, loss), torch.full_like(loss, count / total)
        return Loss(loss.item(), self.stage.correct(y, target), count)

    def backward(self, i: int, gradient: Tensor | None) -> Tensor:
        """Add up the gradient; return that by what entered, where it has one."""
        x, y = self.held.pop(i)
        go_back(y, self.shares.pop(i) if gradient is None else gradient)
        if not x.requires_grad:
            return x
        return torch.zeros_like(x) if x.grad is None else x.grad

    def finish(self, examples: float, weight: float, spending: Spending) -> None:
        """End a step's passes: `grad` is then the stage's part of the update's gradient.

        Args:
            examples: As many as stand behind this pipeline's part of the update.
            weight: Its share of the update.
            spending: Notes what the time inside is spent on.
        """


class Stage(Portion):
    """The layers that one process trains.

    Args:
        whole: The whole model; not to be used any more.
        parts: The blocks of every stage.
        index: Which of them is this process's; None for a driver, which has no layer.
        reached: For each trainable parameter of the whole, whether a loss depends on it.
    """

    def __init__(
        self,
        whole: Replica,
        parts: Sequence[Sequence[Block]],
        index: int | None,
        reached: Sequence[bool],
    ) -> None:
        self.passes: Passes | Staged = Passes(self)
        mine = [] if index is None else parts[index]
        places = dict(zip((id(p) for _, p in whole.named), spans(whole), strict=True))
        owned = [{id(p) for block in part for p in block.parameters()} for part in parts]
        self.cuts = [part[0].name for part in parts[1:]]
        self.spans = [[places[id(p)] for _, p in whole.named if id(p) in ids] for ids in owned]
        modules = [module for part in parts for block in part for _, module in block.modules]
        held = {id(b) for module in modules for b in module.buffers()}
        self._buffers = [b for b in whole.judged.buffers() if id(b) in held]
        ids = set() if index is None else owned[index]
        flags = zip(whole.named, reached, strict=True)
        super().__init__(
            whole,
            [entry for block in mine for entry in block.modules],
            [(name, p) for name, p in whole.named if id(p) in ids],
            [used for (_, p), used in flags if id(p) in ids],
        )

    def shared_buffers(self) -> list[tuple[Tensor, bool]]:
        """Return every buffer that some stage holds, and whether it is this one's."""
        mine = {id(b) for b in self.module.buffers()}
        return [(b, id(b) in mine) for b in self._buffers]
