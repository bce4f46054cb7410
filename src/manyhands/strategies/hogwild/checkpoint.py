"""Stops workers that share memory between two steps, for checkpoints and evaluation."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.comm.memory import MemoryGroup
    from manyhands.worker.worker import Worker

_OVER, _STEP, _SIGNUM, _WAIT = range(4)
_NAP = 0.5e-3  # seconds between two looks


class StepBarrier:
    """Brings all workers to the end of a step, lets each write its part, and lets them continue.

    ```
    the first worker that is not done:  sets a flag when a checkpoint is due
    each worker, after its step:        sees the flag, waits for all, copies, waits for all
    a worker that is done:              waits for the others, and takes part in their checkpoints
    ```

    No worker writes to the shared vector between the two waits, so it holds exactly the updates of
    everyone's steps. The price is the time until the slowest has ended its step. Collective.
    """

    def __init__(self, worker: Worker, memory: MemoryGroup) -> None:
        import torch

        from manyhands.worker.checkpoint.save_or_stop import Lifecycle

        self.worker, self.memory = worker, memory
        self.lifecycle = worker.hook(Lifecycle)
        self.flags = memory.share(torch.zeros(4, dtype=torch.int64)).numpy()
        self.done = memory.share(torch.zeros(memory.size, dtype=torch.int64)).numpy()

    def over(self) -> bool:
        """Say whether some worker has reached the run's target."""
        return bool(self.flags[_OVER])

    def attend(self, step: int) -> None:
        """Begin a checkpoint if one is due and this worker leads; take part in one that has begun.

        Args:
            step: The steps done so far, on the average over the workers.
        """
        lifecycle = self.lifecycle
        if lifecycle is None:
            return
        leads = self.worker.rank == int(self.done.argmin())
        mark = lifecycle.due(step, self.worker.board.stop_signal()) if leads else None
        if mark and not self.over():
            self.flags[_SIGNUM] = mark.signum
            self.flags[_STEP] = mark.step
        if self.flags[_STEP] > lifecycle.mark.step:
            self.worker.board.note(self.worker.rank, self.worker.step, "checkpoint")
            self._end_update()
            self.memory.gather("here")
            self._copy()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let the others wait while worker 0 evaluates; then let them continue, or stop."""
        self.flags[_WAIT] = 1
        yield
        if self.worker.training.early:
            self.flags[_OVER] = 1
        self.flags[_WAIT] = 0

    def wait(self) -> None:
        """Wait while worker 0 evaluates; called by every worker between two steps."""
        if self.worker.rank and self.flags[_WAIT]:
            with self.worker.evaluating():
                while self.flags[_WAIT]:
                    time.sleep(_NAP)
        if self.over():
            self.worker.training.stopped = "target_accuracy"

    def leave(self) -> None:
        """Return when all workers are done."""
        if self.worker.training.early:  # never taken back, so that no lock is needed
            self.flags[_OVER] = 1
        self.done[self.worker.rank] = 1
        self._end_update()
        while "here" in self.memory.gather("done"):
            self._copy()

    def _end_update(self) -> None:
        """Wait until this worker's update is complete: a GPU may still be working on it."""
        import torch

        self.worker.settle()
        if self.worker.params.is_cuda:
            torch.cuda.synchronize()

    def _copy(self) -> None:
        from manyhands.worker.checkpoint.save_or_stop import Mark

        if self.lifecycle:
            mark = Mark(int(self.flags[_STEP]), int(self.flags[_SIGNUM]))
            self.lifecycle.take(self.worker, mark)
        self.memory.barrier()
