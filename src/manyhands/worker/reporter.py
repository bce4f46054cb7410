"""What worker 0 tells the launcher and the user's callbacks, and the files it writes for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.callbacks import EVENTS, StopTraining, tell
from manyhands.worker.clock import Clock, Epoch, Interval, Moment

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm import Communicator
    from manyhands.model.replica import Replica
    from manyhands.worker.training_state import TrainingState


_logger = logging.getLogger(__name__)


@dataclass
class Reporter:
    """Announcements, callbacks and the best model. Only worker 0 has any; others have `events`.

    Attributes:
        announce: Tells the launcher of an event.
        silence: The time since the last announcement.
        callbacks: The user's objects.
        events: The events after which all workers wait until worker 0 has called its callbacks.
        stop: A callback's request to end the run, if there was one.
        keep_best: Writes the best model so far to the disk.
    """

    announce: Callable[[dict[str, Any]], None] | None = None
    silence: Interval = field(default_factory=Interval)
    callbacks: list[Any] = field(default_factory=list)
    events: frozenset[str] = frozenset()
    keep_best: Callable[[Replica, Tensor], None] | None = None
    stop: StopTraining | None = None

    def call(self, event: str, what: dict[str, Any], clock: Clock) -> None:
        """Call the callbacks, off the training clock; keep the first request to stop."""
        if self.callbacks:
            with clock.calling_back():
                request = tell(self.callbacks, event, what)
            self.stop = self.stop or request

    def warn(self, warning: str) -> None:
        """Send a warning, if there is one, to the launcher and to this process's own messages."""
        if warning and self.announce:
            self.announce({"warning": warning})
            _logger.warning(warning)

    def announce_epoch(
        self,
        epoch: Epoch,
        workers: Sequence[Any],
        training: TrainingState,
        *,
        trained: float | None,
    ) -> None:
        """Announce the end of an epoch.

        Args:
            epoch: Worker 0's.
            workers: What each worker has seen in it.
            training: Worker 0's position in the run.
            trained: Examples that all workers together have trained since the run began; None
                where that is secret.
        """
        if self.announce:
            self.silence.begin()
            done = {"step": training.step, "stopped": training.stopped, "trained": trained}
            self.announce({**asdict(epoch), "workers": list(workers), **done})

    def end_epoch(self, epoch: Epoch, step: int, workers: list[Any], clock: Clock) -> None:
        """Call the callbacks at the end of an epoch, off the training clock."""
        if self.callbacks:
            self.call("on_epoch", epoch.row(step, workers), clock)

    def end_moment(self, moment: Moment, clock: Clock, *, private: bool) -> None:
        """Announce an evaluation within an epoch and call the callbacks, off the clock."""
        row = moment.row(private=private)
        if self.announce:
            self.announce({"evaluation": row})
        self.call("on_evaluation", row, clock)

    def agree_on_events(self, group: Communicator) -> None:
        """Find out for which events worker 0 has callbacks. Collective."""
        mine = [any(getattr(one, event, None) for one in self.callbacks) for event in EVENTS]
        mine[EVENTS.index("on_step")] |= self.stop is not None  # asked for before the first step
        with group.meter.off():
            known = group.maximum(np.array(mine, dtype=np.int64))
        self.events = frozenset(event for event, there in zip(EVENTS, known, strict=True) if there)
