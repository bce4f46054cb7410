"""One stage of a model: a replica that holds some consecutive layers, and how it passes data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from manyhands.model.kernels.autograd import backward_from
from manyhands.model.replica import Loss, Replica
from manyhands.strategies.model_blocks import Block, blocks
from manyhands.strategies.model_part import ModelPart, parameter_spans
from manyhands.strategies.pipeline.stage_cuts import cut

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.privacy.split_model_clipping import StageClipping
    from manyhands.strategies.pipeline.schedule import Shape
    from manyhands.worker.worker import Worker


Record = Callable[[str, int | None], AbstractContextManager[None]]


class Passes:
    """How a stage passes micro-batches forward and back: by autograd, which adds up in `grad`.

    A private run replaces it (`privacy/split_model_clipping.py`).

    Attributes:
        records: Whether losses, and the times of single steps, may be recorded.
    """

    records = True

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.held: dict[int, tuple[Tensor, Tensor]] = {}  # a and b
        self.shares: dict[int, Tensor] = {}  # of the update; the last stage's

    def begin(self) -> None:
        """Begin a step."""
        self.stage.grad.zero_()

    def forward(self, i: int, x: Tensor, *key: int) -> Tensor:
        """Return the output b; `key` seeds the random layers."""
        y = self.stage.compute(x, *key)
        self.held[i] = x, y
        return y

    def loss(self, i: int, target: Tensor, total: int) -> Loss | None:
        """Return the loss; the backward pass starts from it, times the share of the update."""
        x, y = self.held[i]
        loss = self.stage.loss(y, target)
        count = len(target)
        self.held[i], self.shares[i] = (x, loss), torch.full_like(loss, count / total)
        return Loss(loss.item(), self.stage.correct(y, target), count)

    def backward(self, i: int, gradient: Tensor | None) -> Tensor:
        """Add to `grad`; return the gradient of the input a, where it has one."""
        x, y = self.held.pop(i)
        backward_from(y, self.shares.pop(i) if gradient is None else gradient)
        if not x.requires_grad:
            return x
        return torch.zeros_like(x) if x.grad is None else x.grad

    def finish(self, examples: float, weight: float, record: Record) -> None:
        """End a step's passes: `grad` is then the stage's part of the update's gradient.

        Args:
            examples: The examples behind this pipeline's share of the update.
            weight: That share.
            record: Records what the time inside is spent on.
        """


class Stage(ModelPart):
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
        self.passes: Passes | StageClipping = Passes(self)
        mine = [] if index is None else parts[index]
        places = dict(zip((id(p) for _, p in whole.named), parameter_spans(whole), strict=True))
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


def cut_stage(
    pipeline: Shape,
    whole: Replica,
    batch: tuple[Tensor, Tensor],
    group: Communicator,
    index: int | None,
) -> Stage:
    """Cut the model, on all processes alike, and return stage `index`. Collective.

    Args:
        pipeline: How the model is cut.
        whole: The whole model; not to be used any more.
        batch: A batch to measure with.
        group: All processes.
        index: Which stage; None for a driver, which has no layer.
    """
    x, y = (part[: pipeline.at_once(len(batch[0]))] for part in batch)
    if whole.masks:
        with whole.undisturbed():
            chain = [entry for block in blocks(whole.module) for entry in block.modules]
            whole.masks.locate(chain, x)
    parts = cut(whole, pipeline.stages, pipeline.cut, (x, y), lambda mine: group.gather(mine)[0])
    return Stage(whole, parts, index, whole.reached(x, y))


def gather_parameters(worker: Worker, roots: Sequence[int], index: int | None) -> Tensor:
    """Return the whole model's parameters; shape (dim,). Collective.

    Args:
        worker: A process with stage `index`, or with none.
        roots: For each stage, a process that holds it.
        index: Which stage this process holds.
    """
    stage = worker.replica
    assert isinstance(stage, Stage)
    whole = stage.params.new_empty(stage.dim)
    for s, (held, root) in enumerate(zip(stage.spans, roots, strict=True)):
        count = sum(stop - start for start, stop in held)
        piece = worker.params if s == index else whole.new_empty(count)
        worker.comm.broadcast(piece, root)
        done = 0
        for start, stop in held:
            whole[start:stop] = piece[done : done + stop - start]
            done += stop - start
    return whole
