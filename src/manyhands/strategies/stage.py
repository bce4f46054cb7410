"""One stage of a model: a replica of consecutive layers, whose other layers are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from manyhands.replica import Replica
from manyhands.strategies.portion import Portion, spans

if TYPE_CHECKING:
    from manyhands.strategies.cutting import Block


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
        mine = [] if index is None else parts[index]
        places = dict(zip((id(p) for _, p in whole.named), spans(whole), strict=True))
        owned = [{id(p) for block in part for p in block.parameters()} for part in parts]
        self.cuts = [part[0].name for part in parts[1:]]
        self.spans = [[places[id(p)] for _, p in whole.named if id(p) in ids] for ids in owned]
        ids = set() if index is None else owned[index]
        flags = zip(whole.named, reached, strict=True)
        super().__init__(
            whole,
            [entry for block in mine for entry in block.modules],
            [(name, p) for name, p in whole.named if id(p) in ids],
            [used for (_, p), used in flags if id(p) in ids],
        )

    def shared_buffers(self) -> list[tuple[Tensor, bool]]:
        """Return every buffer of the whole model, and whether it is this stage's."""
        mine = {id(b) for b in self.module.buffers()}
        return [(b, id(b) in mine) for b in self.judged.buffers()]
