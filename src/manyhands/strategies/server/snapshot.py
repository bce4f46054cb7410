"""Checkpoints of the parameter server: a distributed snapshot (Chandy & Lamport 1985).

```
the first master, when a checkpoint is due:      copies w[m]; its answers carry the mark
a worker whose answer has a new mark:            writes its part; its pushes carry the mark
another master, at the first marked push:        copies w[m]; its answers carry the mark
a master, until every worker's mark has come:    logs the pushes without the mark beside w[m]
```

No process waits. The parts were never true at one moment, but together they are a state that the
run could have been in: worker k's part has c_k steps, and every master's part has exactly its c_k
pushes, logged ones included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from manyhands.strategies.server.state import PUSH, ResumePoint
from manyhands.worker.abilities import Asynchronous

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from manyhands.comm.messages import Parcel
    from manyhands.strategies.server.ssp_clock import SSPClock
    from manyhands.worker.checkpoint.folder_layout import CheckpointPart
    from manyhands.worker.checkpoint.save_or_stop import Lifecycle, Mark
    from manyhands.worker.worker import Worker


class SnapshotCheckpoints(Asynchronous):
    """What the parameter server writes into checkpoints, and takes back from them."""

    staleness: int | None

    def pause(self, worker: Worker) -> None:
        """Write this worker's part of a checkpoint, if the last answer announced one."""
        worker.state.pause()

    def state(self, worker: Worker) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Return a master's counts, or the versions of w[m] that a worker's copy has seen."""
        if worker.role == "master":
            return {}, worker.state.counts()
        return {}, {"versions": worker.state.versions}

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Keep the counts or versions, and a master's logged pushes, until the loop starts."""
        logged = range(len(numbers["log"])) if worker.role == "master" else ()
        worker.state = ResumePoint(numbers, [tensors[f"log.{i}"] for i in logged])

    def progress(self, worker: Worker) -> tuple[int, float] | None:
        """Return the steps and examples behind the last answers to worker 0."""
        examples = [count for count in worker.state.examples if count is not None]
        # Pushes of the dead are no steps of the survivors.
        if worker.training.others_saw or not examples:
            return None
        pushers = 1 if self.staleness == 0 else worker.config.workers
        return min(worker.state.versions) // pushers, min(examples)


@dataclass
class _OpenCheckpoint:
    """A checkpoint under way: this master's part, and the workers whose mark is still to come."""

    mark: Mark
    part: CheckpointPart
    awaited: set[int]

    def log(self, k: int, push: Parcel) -> None:
        """Keep a push that its worker had sent before writing its own part."""
        tensors: dict[str, Any] = self.part.tensors  # type: ignore[assignment]
        entries = self.part.numbers["strategy"]["log"]
        tensors[f"strategy.log.{len(entries)}"] = push.body.clone()
        entries.append([k, int(push.header[1]), int(push.header[5])])


class Snapshot:
    """A master's side of the group's checkpoints.

    Attributes:
        first: This is the master that begins them.
        mark: The newest checkpoint that has begun.
        open: The checkpoints that still wait for a worker's mark.
        asked: The signal that asked some worker to stop, or 0.
    """

    def __init__(self, worker: Worker, lifecycle: Lifecycle) -> None:
        self.worker, self.lifecycle = worker, lifecycle
        self.first = worker.rank == worker.config.workers
        self.mark = lifecycle.mark
        self.open: list[_OpenCheckpoint] = []
        self.asked = 0

    def see(self, k: int, message: Parcel, running: set[int]) -> bool:
        """Look at a message of worker k before it is used.

        Returns:
            Whether a checkpoint begins with it, which the workers that are done must be told.
        """
        kind, _, step, signum, asked, _ = message.header.tolist()
        self.asked = self.asked or asked
        begun = bool(step > self.mark.step)
        if begun:
            self.begin(self.mark._replace(step=step, signum=signum), running)
        for checkpoint in self.open:
            if kind != PUSH or step >= checkpoint.mark.step:
                checkpoint.awaited.discard(k)
            elif k in checkpoint.awaited:
                checkpoint.log(k, message)
        while self.open and not self.open[0].awaited:
            done = self.open.pop(0)
            self.lifecycle.take(self.worker, done.mark, done.part)
        return begun

    def due(self, clock: SSPClock) -> Mark | None:
        """Return the checkpoint that the first master should begin now, if any."""
        if not self.first or self.open:
            return None
        asked = self.asked or self.worker.board.stop_signal()
        pushes = sum(clock.running.values()) + sum(clock.finished.values())
        return self.lifecycle.due(pushes // self.worker.config.workers, asked)

    def begin(self, mark: Mark, running: set[int]) -> None:
        """Copy this master's part, as it is now."""
        from manyhands.worker.checkpoint.saved_contents import capture

        self.mark = mark
        self.open.append(_OpenCheckpoint(mark, capture(self.worker), set(running)))
