"""What happens to a run between two steps: checkpoints are written, a request to stop is heard.

Workers that step together must agree on both, or one would wait for ever: they add up a flag every
few steps, about four times a second. Those who have not just met anyway go on meanwhile and hear
the answer the next time, so that nobody waits for the slowest only to be asked. Where they do not
step together, their strategy finds a moment (`pause`).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from manyhands.comm.communicator import Ready
from manyhands.config.parse import parse_every
from manyhands.errors import ManyhandsError, ShortHandedError, StoppedError
from manyhands.worker.abilities import Asynchronous, Regroupable
from manyhands.worker.checkpoint.folder_layout import BEST, CheckpointPart, Writer
from manyhands.worker.checkpoint.saved_contents import capture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.comm.communicator import Pending
    from manyhands.worker.worker import Worker

AGREE_EVERY = 4  # steps between two questions whether to stop, at the least …
AGREE_AT_MOST, _SECONDS = 64, 0.25  # … and at the most; between these as many as take so long
_LONGEST = 10.0  # seconds between two questions where steps are slow, unless one takes longer
_UNKNOWN = 1_000_000  # microseconds per step before anybody has told: ask again soon


class Mark(NamedTuple):
    """A checkpoint that workers who do not step together agree on.

    `step` names it: the steps done by then, on the average over the workers. A `signum` says that
    it is the last: the run stops with it, as that signal asked.
    """

    step: int
    signum: int = 0


class Lifecycle:
    """One worker's checkpoints and its ear for requests to stop. Made by all workers together.

    Args:
        output: The run's folder.
        about: What the run is, for the manifest: configuration, data hash, kernels.
        grows: Those who have lost others end at the next checkpoint, and all start again from it.

    Attributes:
        mark: The last checkpoint that this process took part in, or goes on from.
    """

    def __init__(
        self, worker: Worker, output: Path, about: Mapping[str, Any], *, grows: bool = False
    ) -> None:
        config = worker.config
        self.about, self.output, self.grows = about, output, grows
        self.short = False  # some have died
        self.every = parse_every(config.checkpoint_every) if config.checkpoint_every else None
        self.writer = self._writer(worker)
        self.written = time.monotonic()
        self.mark = Mark(0)
        self._ask: int | None = None  # the step of the next question, the same on all workers
        self._asked = (0, 0.0)  # the step of the last one, and when that was
        self._answer: Pending | None = None  # to the last one, where it is heard at the next
        if _goes_on(worker):  # what a question needs the first one makes, now that all are here
            worker.comm.begin_maximum(np.zeros(3, dtype=np.int64)).result()

    def _writer(self, worker: Worker) -> Writer:
        """Return what writes this worker's parts. Collective."""
        patience = 2 * worker.config.timeout  # whoever hangs is told of before
        writer = Writer(self.output, worker.rank, worker.comm.size, worker.config.keep, patience)
        if self.every is not None:
            worker.comm.barrier()  # worker 0 has cleared away what a killed run left half written
        return writer

    def renew(self, worker: Worker) -> None:
        """Write for a group that has become smaller, from now on. Collective.

        A checkpoint under way may lack the parts of those who are gone: it is given up.
        """
        self.writer.give_up()
        # Nobody writes for the old group any more; the next one has a name that nobody has used.
        self.mark = Mark(int(worker.comm.maximum(np.array([self.mark.step]))[0]))
        self._ask, self.short = None, True
        self.writer = self._writer(worker)
        options = {**self.about["options"], "workers": worker.config.workers}
        self.about = {**self.about, "options": options}

    def after_step(self, worker: Worker, examples: int = 0) -> None:
        """Write a checkpoint if one is due; end the run if that was asked for.

        Raises:
            StoppedError: On every worker at the same step, after the checkpoint is on the disk;
                where they do not step together and no checkpoints are written, at once.
            ShortHandedError: Likewise, where some have died and all are to start again.
        """
        strategy = worker.config.strategy
        if self.every and not strategy.supports.together:
            if isinstance(strategy, Asynchronous):
                strategy.pause(worker)
            return
        asked, late = self._agreed(worker)
        steps = self.every.steps if self.every else None
        due = late or asked or (steps and worker.step % steps == 0)
        if due and not asked and self._worth_growing(worker):
            left = worker.config.workers
            self.hand_over(worker, ShortHandedError(f"workers left: {left}"))
        if due:
            self._write(worker)
        if asked:
            self._wait(worker)
            if worker.computation.mechanism:
                worker.computation.mechanism.close()
            if strategy.supports.together:
                worker.comm.barrier()  # nobody ends the group before every part is on the disk
            raise StoppedError(asked, worker.step, checkpoint=self.every is not None)

    def _worth_growing(self, worker: Worker) -> bool:
        """Say whether some have died, may come back, and would have anything to do."""
        if not (self.grows and self.short):
            return False
        planned = [n.steps for n in worker.board.read() if n.rank == worker.number]
        return worker.step < max(planned, default=0)

    def hand_over(self, worker: Worker, error: ManyhandsError) -> NoReturn:
        """Write a checkpoint that any number of workers can go on from, then end. Collective.

        Only where workers step together. Whoever comes in takes a copy of worker 0's model, so all
        must be the same: where they are not, the workers meet before they write.
        """
        strategy = worker.config.strategy
        if not strategy.supports.identical and isinstance(strategy, Regroupable):
            strategy.regroup(worker)
        self.about = {**self.about, "alike": True}
        self._write(worker)
        self._wait(worker)
        worker.comm.barrier()  # nobody ends the group before every part is on the disk
        raise error

    def _wait(self, worker: Worker) -> None:
        """Wait until what is being written is on the disk.

        The first waits for everybody's parts. Where workers may die it asks them first: what lacks
        the part of one who is gone would be waited for in vain.
        """
        if worker.config.on_failure == "continue":
            if worker.rank:
                self.writer.wait()
            worker.comm.barrier()
        self.writer.wait()

    def _agreed(self, worker: Worker) -> tuple[int, bool]:
        """Return the signal that asks us to stop (0: none), and whether a checkpoint is late."""
        asked = worker.board.stop_signal()
        if not worker.config.strategy.supports.together:
            return asked, False
        if self._ask is None:
            self._ask = worker.step  # nobody knows yet how long a step takes
            self._asked = (worker.step, time.monotonic())
        if worker.step < self._ask:
            if self._answer:
                self._answer.progress()
            return 0, False
        worker.board.note(worker.number, worker.step, "agree")
        step, before = self._asked
        begin = time.monotonic()
        pace = (begin - before) / max(1, worker.step - step)  # seconds per step
        flags = np.array([asked, self._late() and worker.rank == 0, 1e6 * pace], dtype=np.int64)
        asked, late, slowest = self._agree_flags(worker, flags)
        # From here on: where an answer takes long, asking more often would only cost more.
        self._asked = (worker.step, time.monotonic())
        worker.clock.exchange(begin, self._asked[1])  # mostly waiting for the slowest
        # One step after the first, then at most twice as long: slow steps are noticed soon.
        longest = max(1, 2 * (worker.step - step))
        self._ask = worker.step + min(steps_between(slowest / 1e6), longest)
        return asked, bool(late)

    def _agree_flags(self, worker: Worker, flags: np.ndarray) -> list[int]:
        """Return the maximum of everybody's flags, or of the flags of the last time."""
        if not _goes_on(worker):
            return list(worker.comm.maximum(flags).tolist())
        answer = list(self._answer.result().tolist()) if self._answer else [0, 0, _UNKNOWN]
        flags[1] &= not answer[1]  # what was late is about to be written
        self._answer = None if answer[0] else worker.comm.begin_maximum(flags)
        if isinstance(self._answer, Ready):  # this group can do nothing meanwhile
            answer = list(self._answer.result().tolist())
            self._answer = None
        return answer

    def _settle(self) -> None:
        """Let nothing be under way when the group ends. Collective."""
        if self._answer:
            self._answer.result()
            self._answer = None

    def _late(self) -> bool:
        seconds = self.every.seconds if self.every else None
        return seconds is not None and time.monotonic() - self.written > seconds

    def _write(self, worker: Worker) -> None:
        if self.every is not None:
            worker.settle()
            if worker.config.on_failure == "continue":
                self._wait(worker)  # for the one before, which may lack the part of one who is gone
            self.take(worker, Mark(worker.step), capture(worker))

    def due(self, step: int, asked: int) -> Mark | None:
        """Return the checkpoint that workers who do not step together should begin now, if any.

        Args:
            step: The steps done so far, on the average over the workers.
            asked: The signal that asks the run to stop, or 0.
        """
        if self.every is None or step <= self.mark.step:  # its name must be a new one
            return None
        steps = self.every.steps
        passed = steps is not None and step // steps > self.mark.step // steps
        return Mark(step, asked) if asked or passed or self._late() else None

    def take(self, worker: Worker, mark: Mark, part: CheckpointPart | None = None) -> None:
        """Begin to write this process's part of a checkpoint; after the last one, stop."""
        worker.board.note(worker.number, worker.step, "checkpoint")
        epochs = worker.training.epochs
        about = {**self.about, "epoch": epochs[-1].epoch if epochs else 0}
        path = self.output / BEST  # read now: a better one may take its place meanwhile
        best = path.read_bytes() if worker.reporter.keep_best and path.exists() else None
        self.writer.write(mark.step, part or capture(worker), about, best)
        self.written = time.monotonic()
        self.mark = mark
        if mark.signum:
            worker.training.stopped = "signal"
        if worker.clock.ended is not None:  # done, and only here because others are not
            worker.board.note(worker.number, worker.step, "done")

    def end(self, worker: Worker) -> None:
        """Wait for what is being written. Collective where a signal stopped the run.

        Raises:
            StoppedError: On every process, after the last checkpoint is on the disk.
        """
        self._settle()
        self._wait(worker)
        if self.mark.signum:
            worker.comm.barrier()  # nobody ends the group before every part is on the disk
            raise StoppedError(self.mark.signum, self.mark.step, checkpoint=True)


def _goes_on(worker: Worker) -> bool:
    """Say whether a worker goes on while its question is answered.

    Replicas that are the same have just been made so, and others of the group may be gone where
    they may die: there the answer is waited for.
    """
    if worker.comm.size == 1:
        return False
    supports = worker.config.strategy.supports
    apart = supports.together and not supports.identical
    return apart and worker.config.on_failure != "continue"


def steps_between(pace: float) -> int:
    """Return after how many steps to agree again, where the slowest worker's take `pace` seconds.

    >>> [steps_between(pace) for pace in (0.001, 0.01, 1.0, 5.0, 60.0)]
    [64, 25, 4, 2, 1]
    """
    pace = max(pace, 1e-6)
    least = max(1, min(AGREE_EVERY, int(_LONGEST / pace)))
    return max(least, min(AGREE_AT_MOST, int(_SECONDS / pace)))
