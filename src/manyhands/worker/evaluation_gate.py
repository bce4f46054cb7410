"""Stops the other workers while worker 0 evaluates, where workers do not step together."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.comm.messages import Messages
    from manyhands.worker.worker import Worker

# Worker 0's messages: wait; continue; the run is over; this is the last message.
WAIT, CONTINUE, STOP, END = range(4)
_NAP = 0.5e-3  # seconds between two looks


class MessageGate:
    """A gate that worker 0 closes by messages; each other process looks for them after a step.

    ```
    worker 0, before it evaluates:   send WAIT to all
              afterwards:            send CONTINUE to all, or STOP where the run is over
              after its last step:   send END to all, or STOP, unless it has sent that
    another, after each step:        if WAIT has come: wait for CONTINUE or STOP
    ```

    So another worker ends its current step, and begins no other. Worker 0's messages also say how
    long it evaluated: a worker that waited for an answer meanwhile subtracts that from its clock.

    Args:
        worker: The worker.
        messages: The group's messages.
        waits: The strategy lets a worker wait for worker 0 within a step.
    """

    def __init__(self, worker: Worker, messages: Messages, *, waits: bool = False) -> None:
        self.worker, self.messages, self.waits = worker, messages, waits
        self.state = CONTINUE
        self.evaluated = 0.0  # seconds that worker 0 has reported
        self.asks = True  # False: another thread receives the messages
        self._message = np.zeros(2, dtype=np.int64)  # what it says, and microseconds
        self._sent: list[tuple[Any, np.ndarray]] = []
        self.request: Any = messages.receive_note(self._message, 0) if worker.rank else None

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let the others wait while worker 0 evaluates; then let them continue, or stop."""
        begin = time.monotonic()
        self._send(WAIT)
        yield
        self._send(STOP if self.worker.training.early else CONTINUE, time.monotonic() - begin)

    def _send(self, what: int, seconds: float = 0.0) -> None:
        self.state = what
        note = np.array([what, round(1e6 * seconds)], dtype=np.int64)
        others = range(1, self.worker.comm.size)
        self._sent += [(self.messages.send_note(note, other), note) for other in others]

    def wait(self) -> None:
        """Wait while worker 0 evaluates; called by every worker between two steps."""
        if self.worker.rank == 0:
            return
        before, begin = self.evaluated, time.monotonic()
        self._look()
        if self.state == WAIT:
            with self.worker.evaluating():
                while self.state == WAIT:
                    time.sleep(_NAP)
                    self._look()
        if self.waits and self.evaluated > before:
            waited = time.monotonic() - begin
            self.worker.clock.leave_out_of_exchange(self.evaluated - before - waited)
        if self.state == STOP:
            self.worker.training.stopped = "target_accuracy"

    def _look(self) -> None:
        while self.asks and self.request is not None and self.request.Test():
            self.take()

    def take(self) -> None:
        """Read the message that has arrived, and expect the next one."""
        what, microseconds = self._message.tolist()
        if self.state != STOP:
            self.state = what
        self.evaluated += microseconds / 1e6
        over = what in (STOP, END)
        self.request = None if over else self.messages.receive_note(self._message, 0)

    @classmethod
    def if_needed(
        cls, worker: Worker, messages: Messages, *, waits: bool = False
    ) -> MessageGate | None:
        """Return one where worker 0 may have to evaluate while others train."""
        needed = worker.evaluation.aim.ends and worker.comm.size > 1
        return cls(worker, messages, waits=waits) if needed else None

    def end(self) -> None:
        """Send the last message, or wait for it; after training."""
        if self.worker.rank == 0:
            if self.state != STOP:
                self._send(STOP if self.worker.training.early else END)
            self.messages.wait_all([request for request, _ in self._sent])
            return
        while self.request is not None:
            self.messages.wait(self.request)
            self.take()
