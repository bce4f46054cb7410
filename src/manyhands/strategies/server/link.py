"""A worker of the parameter server: it pushes gradients and pulls parameters."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from manyhands.comm.messages import Messages, Parcel
from manyhands.worker.checkpoint.lifecycle import Lifecycle, Mark
from manyhands.worker.computation import shorten
from manyhands.worker.hold import MessageHold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from manyhands.strategies.server.state import Rules, Span
    from manyhands.worker.worker import Worker

# What the first number of a header says. A push's others: its examples, the worker's last
# checkpoint (step and signal), the signal that it was asked to stop by, and the version of w[m]
# that its gradient was computed at; an answer's: the group's last checkpoint (step and signal), the
# version of w[m] that it brings, and the examples behind that.
PUSH, DONE, STOP, MARK = range(4)


def work(worker: Worker, server: Rules, spans: Sequence[Span]) -> None:
    """Push the gradient of every batch to the masters, pull what they answer.

    With `prefetch` the answer to a push is taken in only when the next gradient is computed; with
    `layerwise` a layer's gradient is on its way as soon as the backward pass has it.

    Args:
        worker: The worker.
        server: The strategy, with its options.
        spans: Each master's part of the vector.
    """
    prefetch, cuts = bool(server.prefetch), [server.cuts(worker, span) for span in spans]
    versions = worker.state.numbers["versions"] if worker.state else [0] * len(spans)
    line = worker.state = Line(worker, spans, cuts, versions)
    # With a bound a worker may wait for the pushes of worker 0.
    hold = MessageHold.made(worker, line.messages, waits=server.staleness is not None)
    worker.evaluation.hold = hold
    if server.layerwise:
        line.listen()
    owed = worker.step > 0  # a checkpoint was written between a push and the next
    for batch in worker.batches():
        if owed and not prefetch:
            line.pull()
        gradient, used = worker.gradient(batch), line.versions
        shorten(gradient, worker.config.clip_norm)
        with worker.exchanging():
            if owed and prefetch and line.pull() == STOP:
                worker.course.stopped = "target_accuracy"
            line.send(PUSH, round(batch.examples), used, gradient)
            owed = prefetch
            if not prefetch and line.pull() == STOP:
                worker.course.stopped = "target_accuracy"
    if hold and worker.rank == 0:
        hold.end()
    if owed:
        line.pull()
        line.pause()  # a mark must go on to the other masters, with the next message
    line.send(STOP if worker.course.early else DONE, 0, line.versions)
    while line.pull() == MARK:  # others go on, and have begun a checkpoint
        line.pause()
    if hold and worker.rank:  # worker 0 may need the message before this one's end
        hold.end()


class Line:
    """One worker's line to all masters: a parcel for each way.

    Attributes:
        mark: The last checkpoint that a master has told of.
        versions: The updates of w[m] that the parameters here have seen, by master.
        examples: The examples behind these; None before the first answer.
        edges: By master, the pieces of a push as parts of the vector, in the order of sending.
        missing: By master and piece, the parameters whose gradient is still to come.
        gone: By master, how many pieces of this push are on their way.
    """

    def __init__(
        self,
        worker: Worker,
        spans: Sequence[Span],
        cuts: list[list[int]],
        versions: Sequence[int],
    ) -> None:
        self.worker, self.spans = worker, spans
        self.lifecycle = worker.hook(Lifecycle)
        self.messages = Messages(worker.comm)
        self.masters = range(worker.config.workers, worker.comm.size)
        pairs = list(zip(spans, cuts, strict=True))
        self.pushes = [Parcel(worker.params[a:b], within) for (a, b), within in pairs]
        self.answers = [Parcel(worker.params[start:stop]) for start, stop in spans]
        bounds = [[a, *(a + cut for cut in within), b] for (a, b), within in pairs]
        self.edges: list[list[Span]] = [list(pairwise(edges))[::-1] for edges in bounds]
        self.counts = [[0] * len(edges) for edges in self.edges]
        self.mark, self.versions = Mark(0), list(versions)
        self.examples: list[int | None] = [None] * len(spans)
        self.sent: list[Any] = []  # requests of the push that is under way
        self.posted: list[Any] = []  # and of the next one's first pieces
        self.unanswered = False
        self._begin()

    def _begin(self) -> None:
        """Be ready for the next push."""
        self.missing = [list(counts) for counts in self.counts]
        self.gone = [0] * len(self.pushes)

    def listen(self) -> None:
        """Let every layer's gradient be sent as soon as the backward pass has it."""
        self.worker.replica.watched = True
        start = 0
        for _, p in self.worker.replica.named:
            m, n = self._piece(start)
            self.counts[m][n] += 1
            hook = partial(self._hear, m, n)
            p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            start += p.numel()
        self._begin()

    def _piece(self, place: int) -> tuple[int, int]:
        """Return the master and the piece that a place of the vector belongs to."""
        found = enumerate(self.edges)
        return next((m, n) for m, es in found for n, (a, b) in enumerate(es) if a <= place < b)

    def _hear(self, m: int, n: int, _: Tensor) -> None:
        """Send what is complete, the header's piece excepted, always in the same order."""
        self.missing[m][n] -= 1
        while self.gone[m] < len(self.edges[m]) - 1 and not self.missing[m][self.gone[m]]:
            self._post(m, self.worker.replica.grad)

    def _post(self, m: int, gradient: Tensor | None) -> None:
        """Send the next piece of a push."""
        if self.sent:  # the last push was all but received before; its parcels are used again
            self.messages.wait_all(self.sent)
            self.sent = []
        push, n = self.pushes[m], self.gone[m]
        first, last = self.edges[m][n]
        if gradient is not None:
            start = self.spans[m][0]
            push.body[first - start : last - start].copy_(gradient[first:last])
        self.posted.append(self.messages.send_piece(push.pieces[n], self.masters[m]))
        self.gone[m] += 1

    def send(
        self, kind: int, examples: int, used: list[int], gradient: Tensor | None = None
    ) -> None:
        """Send the pushes, or what is left of them; computed at the versions `used`."""
        self.begin = time.perf_counter()
        mark = self.lifecycle.mark if self.lifecycle else Mark(0)
        for push, version in zip(self.pushes, used, strict=True):
            push.header[:] = kind, examples, *mark, self.worker.board.asked(), version
        for m, edges in enumerate(self.edges):
            while self.gone[m] < len(edges):
                self._post(m, gradient)
        self.sent, self.posted, self.unanswered = self.posted, [], True
        self._begin()

    def pull(self) -> int:
        """Take in what the masters answer, in the order in which it comes.

        Returns:
            PUSH or STOP; MARK where a worker that is done shall take part in a checkpoint.
        """
        pairs = zip(self.masters, self.answers, strict=True)
        requests = [self.messages.receive(answer, master) for master, answer in pairs]
        left, self.versions = len(requests), list(self.versions)
        while left:
            for m in self.messages.wait_some(requests):
                start, stop = self.spans[m]
                self.worker.params[start:stop].copy_(self.answers[m].body)
                self.versions[m] = int(self.answers[m].header[3])
                self.examples[m] = int(self.answers[m].header[4])
                left -= 1
        self.mark = max(Mark(*answer.header[1:3].tolist()) for answer in self.answers)
        self._count()
        return int(max(answer.header[0] for answer in self.answers))

    def _count(self) -> None:
        """Note what the last push cost, its answer included."""
        if self.sent:
            self.messages.wait_all(self.sent)
            self.sent = []
        if self.unanswered:
            self.unanswered = False
            sent = sum(push.nbytes for push in self.pushes)
            self.worker.comm.meter.add(
                "push",
                payload=sent,
                sent=sent,
                messages=sum(map(len, self.edges)),
                seconds=time.perf_counter() - self.begin,
            )

    def pause(self) -> None:
        """Write this worker's part of the checkpoint that the masters told of, once."""
        lifecycle = self.lifecycle
        if lifecycle and self.mark.step > lifecycle.mark.step:
            lifecycle.take(self.worker, self.mark)
