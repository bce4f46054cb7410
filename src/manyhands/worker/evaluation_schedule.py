"""When a model is evaluated within epochs: after so many steps, epochs or seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.config.parse import Every
    from manyhands.worker.worker import Worker


class Schedule:
    """The moments of `--evaluate-every`, each a multiple of it.

    Steps and epochs are counted by each worker for itself; where workers step together they count
    alike. Seconds are those of the slowest worker. Workers that step together find them out
    together, at steps that are the same for all: the pace so far says at which step to ask again,
    but no later than after twice as many steps as the last time. Elsewhere worker 0 decides.

    A run that is resumed continues with the moments that its checkpoint has not passed.
    """

    def __init__(self, every: Every) -> None:
        self.every = every
        self._group: Communicator | None = None
        self._ask = 0  # the step of the next question, the same on all workers
        self._asked: tuple[int, float] | None = None  # the last one's, and the seconds by then

    def due(self, worker: Worker) -> int | None:
        """Return the number of the moment that the last step has reached, if it is due.

        Collective where workers step together.
        """
        if self.every.seconds is not None:
            return self._due_by_clock(worker, self.every.seconds)
        number, before = self._passed(worker, 0), self._passed(worker, 1)
        return self._used(worker, number, before)

    def _passed(self, worker: Worker, back: int) -> int:
        """Return how many moments had passed so many steps ago."""
        if self.every.steps is not None:
            return (worker.step - back) // self.every.steps
        assert self.every.epochs is not None
        epoch, (over, under) = worker.training.epochs[-1], self.every.epochs.as_integer_ratio()
        steps = max(epoch.steps, worker.plan.steps(epoch.epoch))
        return ((epoch.epoch - 1) * steps + epoch.steps - back) * under // (steps * over)

    def _used(self, worker: Worker, number: int, before: int) -> int | None:
        stride = worker.training.stride
        return number // stride * stride if number // stride > before // stride else None

    def _due_by_clock(self, worker: Worker, every: float) -> int | None:
        training, seconds = worker.training, worker.clock.seconds()
        if worker.config.strategy.supports.together and worker.comm.size > 1:
            if self._group is not worker.comm:  # the group is new, or has lost workers
                self._group, self._ask, self._asked = worker.comm, worker.step, None
            if worker.step < self._ask:
                return None
            with worker.evaluating():
                seconds = float(worker.comm.maximum(np.array([seconds]))[0])
            self._plan_question(worker.step, seconds, every * training.stride)
        number = self._used(worker, int(seconds / every), int(training.evaluated / every))
        if number is not None:
            training.evaluated = seconds
        return number

    def _plan_question(self, step: int, seconds: float, every: float) -> None:
        """Choose the step of the next question from what all workers know."""
        ahead = 1
        if self._asked is not None:
            done, took = step - self._asked[0], seconds - self._asked[1]
            left = every - seconds % every
            ahead = max(1, min(2 * done, int(left * done / took) if took > 0 else 2 * done))
        self._asked, self._ask = (step, seconds), step + ahead
