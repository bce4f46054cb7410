"""A worker of the parameter server: it pushes gradients and pulls parameters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from manyhands.comm.messages import Messages, Parcel

if TYPE_CHECKING:
    from manyhands.worker import Worker

Span = tuple[int, int]  # a part of the vector: start, stop

# What the first number of a header says. The second is a push's examples.
PUSH, DONE, STOP = 0, 1, 2


def work(worker: Worker, spans: list[Span]) -> None:
    """Push the gradient of every batch to the masters, pull what they answer."""
    line = _Line(worker, spans)
    for batch in worker.batches():
        gradient = worker.gradient(batch)
        with worker.exchanging():
            for push, (start, stop) in zip(line.pushes, spans, strict=True):
                push.header[:2] = PUSH, round(batch.examples)
                push.body.copy_(gradient[start:stop])
            line.send()
            if line.pull() == STOP:
                worker.stopped = "target_accuracy"
    for push in line.pushes:
        push.header[:2] = STOP if worker.stopped == "target_accuracy" else DONE, 0
    line.send()
    line.pull()


class _Line:
    """One worker's line to all masters: a parcel for each way."""

    def __init__(self, worker: Worker, spans: list[Span]) -> None:
        self.worker, self.spans = worker, spans
        self.messages = Messages(worker.comm)
        self.masters = range(worker.config.workers, worker.comm.size)
        self.pushes = [Parcel(worker.params[start:stop]) for start, stop in spans]
        self.answers = [Parcel(worker.params[start:stop]) for start, stop in spans]
        self.sent: list[Any] = []

    def send(self) -> None:
        """Send the pushes, whatever they hold."""
        self.begin = time.perf_counter()
        pairs = list(zip(self.masters, self.pushes, strict=True))
        self.sent = [self.messages.send(push, master) for master, push in pairs]

    def pull(self) -> int:
        """Take in what the masters answer, in the order in which it comes; returns PUSH or STOP."""
        pairs = zip(self.masters, self.answers, strict=True)
        requests = [self.messages.receive(answer, master) for master, answer in pairs]
        left = len(requests)
        while left:
            for m in self.messages.wait_some(requests):
                start, stop = self.spans[m]
                self.worker.params[start:stop].copy_(self.answers[m].body)
                left -= 1
        self.messages.wait_all(self.sent)
        sent = sum(push.nbytes for push in self.pushes)
        self.worker.comm.meter.add(
            "push",
            payload=sent,
            sent=sent,
            messages=len(self.pushes),
            seconds=time.perf_counter() - self.begin,
        )
        return int(max(answer.header[0] for answer in self.answers))
