"""A master's part of a checkpoint: a cut through a group that never stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from manyhands.strategies.server.link import PUSH
from manyhands.worker.checkpoint.capture import capture
from manyhands.worker.checkpoint.lifecycle import Mark

if TYPE_CHECKING:
    from manyhands.comm.messages import Parcel
    from manyhands.worker.checkpoint.format import Part
    from manyhands.worker.checkpoint.lifecycle import Lifecycle
    from manyhands.worker.worker import Worker


@dataclass
class _Cut:
    """A checkpoint under way: this master's part, and the workers whose mark is still to come."""

    mark: Mark
    part: Part
    awaited: set[int]

    def log(self, k: int, push: Parcel) -> None:
        """Keep a push that its worker had sent before its own part was written."""
        tensors: dict[str, Any] = self.part.tensors  # type: ignore[assignment]
        entries = self.part.numbers["strategy"]["log"]
        tensors[f"strategy.log.{len(entries)}"] = push.body.clone()
        entries.append([k, int(push.header[1]), int(push.header[5])])


class Cuts:
    """A master's side of the group's checkpoints, which nobody waits for.

    ```
    the first master, when a checkpoint is due:    copies w[m]; its answers carry the mark
    a worker that is answered with a new mark:     writes its part; its pushes carry the mark
    another master, at the first push so marked:   copies w[m]; its answers carry the mark
    a master, until every worker's mark has come:  keeps the pushes without it beside w[m]
    ```

    That is the distributed snapshot of Chandy & Lamport (1985): the parts were never true at one
    moment, but together they are a state that the run could have been in. Worker k's part has c_k
    steps, and in every master's part, kept pushes included, are exactly its c_k pushes.
    """

    def __init__(self, worker: Worker, lifecycle: Lifecycle) -> None:
        self.worker, self.lifecycle = worker, lifecycle
        self.first = worker.rank == worker.config.workers
        self.mark = lifecycle.mark
        self.open: list[_Cut] = []
        self.asked = 0  # the signal that some worker was asked to stop by

    def see(self, k: int, message: Parcel, running: set[int]) -> bool:
        """Look at a message of worker k before anything else is done with it.

        Returns:
            Whether a checkpoint has begun with it, of which the workers that are done must hear.
        """
        kind, _, step, signum, asked, _ = message.header.tolist()
        self.asked = self.asked or asked
        begun = bool(step > self.mark.step)
        if begun:
            self.begin(Mark(step, signum), running)
        for cut in self.open:
            if kind != PUSH or step >= cut.mark.step:
                cut.awaited.discard(k)
            elif k in cut.awaited:
                cut.log(k, message)
        while self.open and not self.open[0].awaited:
            cut = self.open.pop(0)
            self.lifecycle.take(self.worker, cut.mark, cut.part)
        return begun

    def due(self, pushes: int) -> Mark | None:
        """Return the checkpoint that the first master should begin now, if any."""
        if not self.first or self.open:
            return None
        asked = self.asked or self.worker.board.asked()
        return self.lifecycle.due(pushes // self.worker.config.workers, asked)

    def begin(self, mark: Mark, running: set[int]) -> None:
        """Copy what this master holds, as it is now."""
        self.mark = mark
        self.open.append(_Cut(mark, capture(self.worker), set(running)))
