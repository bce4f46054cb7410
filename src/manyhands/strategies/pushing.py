"""A worker of the parameter server: it pushes gradients and pulls parameters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from manyhands.comm.messages import Messages, Parcel
from manyhands.lifecycle import Mark

if TYPE_CHECKING:
    from manyhands.worker import Worker

Span = tuple[int, int]  # a part of the vector: start, stop

# What the first number of a header says. A push's others: its examples, the worker's last
# checkpoint (step and signal), the signal that it was asked to stop by, and the version of w[m]
# that its gradient was computed at; an answer's: the group's last checkpoint (step and signal), and
# the version of w[m] that it brings.
PUSH, DONE, STOP, MARK = range(4)


def work(worker: Worker, spans: list[Span], *, prefetch: bool) -> None:
    """Push the gradient of every batch to the masters, pull what they answer.

    With `prefetch` the answer to a push is taken in only when the next gradient is computed.
    """
    line = worker.state = Line(worker, spans, worker.state or [0] * len(spans))
    owed = worker.step > 0  # a checkpoint was written between a push and the next
    for batch in worker.batches():
        if owed and not prefetch:
            line.pull()
        gradient, used = worker.gradient(batch), line.versions
        worker.shorten(gradient)
        with worker.exchanging():
            if owed and prefetch and line.pull() == STOP:
                worker.stopped = "target_accuracy"
            for push, (start, stop) in zip(line.pushes, spans, strict=True):
                push.body.copy_(gradient[start:stop])
            line.send(PUSH, round(batch.examples), used)
            owed = prefetch
            if not prefetch and line.pull() == STOP:
                worker.stopped = "target_accuracy"
    if owed:
        line.pull()
        line.pause()  # a mark must go on to the other masters, with the next message
    line.send(STOP if worker.early else DONE, 0, line.versions)
    while line.pull() == MARK:  # others go on, and have begun a checkpoint
        line.pause()


class Line:
    """One worker's line to all masters: a parcel for each way.

    Attributes:
        mark: The last checkpoint that a master has told of.
        versions: The updates of w[m] that the parameters here have seen, by master.
    """

    def __init__(self, worker: Worker, spans: list[Span], versions: list[int]) -> None:
        self.worker, self.spans = worker, spans
        self.messages = Messages(worker.comm)
        self.masters = range(worker.config.workers, worker.comm.size)
        self.pushes = [Parcel(worker.params[start:stop]) for start, stop in spans]
        self.answers = [Parcel(worker.params[start:stop]) for start, stop in spans]
        self.mark, self.versions = Mark(0), versions
        self.sent: list[Any] = []

    def send(self, kind: int, examples: int, used: list[int]) -> None:
        """Send the pushes, whatever they hold; it was computed at the versions `used`."""
        self.begin = time.perf_counter()
        mark = self.worker.lifecycle.mark if self.worker.lifecycle else Mark(0)
        for push, version in zip(self.pushes, used, strict=True):
            push.header[:] = kind, examples, *mark, self.worker.board.asked(), version
        pairs = list(zip(self.masters, self.pushes, strict=True))
        self.sent = [self.messages.send(push, master) for master, push in pairs]

    def pull(self) -> int:
        """Take in what the masters answer, in the order in which it comes.

        Returns:
            PUSH or STOP; MARK where a worker that is done shall take part in a checkpoint.
        """
        pairs = zip(self.masters, self.answers, strict=True)
        requests = [self.messages.receive(answer, master) for master, answer in pairs]
        left = len(requests)
        while left:
            for m in self.messages.wait_some(requests):
                start, stop = self.spans[m]
                self.worker.params[start:stop].copy_(self.answers[m].body)
                left -= 1
        self.mark = max(Mark(*answer.header[1:3].tolist()) for answer in self.answers)
        self.versions = [int(answer.header[3]) for answer in self.answers]
        self._count()
        return int(max(answer.header[0] for answer in self.answers))

    def _count(self) -> None:
        """Note what the last push cost, its answer included."""
        if self.sent:
            self.messages.wait_all(self.sent)
            self.sent = []
            sent = sum(push.nbytes for push in self.pushes)
            self.worker.comm.meter.add(
                "push",
                payload=sent,
                sent=sent,
                messages=len(self.pushes),
                seconds=time.perf_counter() - self.begin,
            )

    def pause(self) -> None:
        """Write this worker's part of the checkpoint that the masters told of, once."""
        lifecycle = self.worker.lifecycle
        if lifecycle and self.mark.step > lifecycle.mark.step:
            lifecycle.take(self.worker, self.mark)
