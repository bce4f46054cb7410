"""Messages between the workers and the masters of the parameter server.

A push or an answer is a parcel for each master: a header of six numbers, and that master's span of
the vector. Both ends reuse their parcels, so a parcel is filled again only when it has arrived.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from manyhands.comm.messages import Messages, Parcel
from manyhands.strategies.server.ownership import layer_cuts
from manyhands.strategies.server.state import DONE, MARK, PUSH, STOP
from manyhands.worker.checkpoint.save_or_stop import Lifecycle, Mark
from manyhands.worker.evaluation_gate import MessageGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from manyhands.strategies.server.state import Rules, Span
    from manyhands.worker.worker import Worker


class WorkerLink:
    """One worker's end: it pushes its gradient to all masters and pulls their parameters.

    With `layerwise` a layer's gradient is sent as soon as the backward pass has it.

    Args:
        worker: The worker; its `state` becomes the link.
        server: The strategy's options.
        spans: Each master's span of the vector.

    Attributes:
        owed: The masters have not answered the last push yet.
        mark: The last checkpoint that a master has announced.
        versions: The updates of w[m] that the parameters here have seen, by master.
        examples: The examples behind these; None before the first answer.
        edges: By master, the pieces of a push as spans of the vector, in the order of sending.
        missing: By master and piece, the parameters whose gradient is still to come.
        gone: By master, how many pieces of this push are on their way.
    """

    def __init__(self, worker: Worker, server: Rules, spans: Sequence[Span]) -> None:
        self.worker, self.spans = worker, spans
        versions = worker.state.numbers["versions"] if worker.state else [0] * len(spans)
        worker.state = self
        self.lifecycle = worker.hook(Lifecycle)
        self.messages = Messages(worker.comm)
        self.masters = range(worker.config.workers, worker.comm.size)
        pairs = [(span, layer_cuts(worker, span) if server.layerwise else []) for span in spans]
        self.pushes = [Parcel(worker.params[a:b], within) for (a, b), within in pairs]
        self.answers = [Parcel(worker.params[start:stop]) for start, stop in spans]
        bounds = [[a, *(a + cut for cut in within), b] for (a, b), within in pairs]
        self.edges: list[list[Span]] = [list(pairwise(edges))[::-1] for edges in bounds]
        self.counts = [[0] * len(edges) for edges in self.edges]
        self.mark, self.versions = Mark(0), list(versions)
        self.examples: list[int | None] = [None] * len(spans)
        self.sent: list[Any] = []  # requests of the push that is under way
        self.posted: list[Any] = []  # and of the next one's first pieces
        self.unmetered = False  # a push whose cost is not counted yet
        self.owed = worker.step > 0  # a checkpoint is written between a push and the next
        self._closing = False
        # With a bound a worker may wait for the pushes of worker 0.
        waits = server.staleness is not None
        self.gate = worker.evaluation.gate = MessageGate.if_needed(
            worker, self.messages, waits=waits
        )
        self._begin()
        if server.layerwise:
            self._send_during_backward()

    def _begin(self) -> None:
        """Prepare the next push."""
        self.missing = [list(counts) for counts in self.counts]
        self.gone = [0] * len(self.pushes)

    def _send_during_backward(self) -> None:
        """Send every layer's gradient as soon as the backward pass has it."""
        self.worker.replica.watched = True
        start = 0
        for _, p in self.worker.replica.named:
            m, n = self._piece(start)
            self.counts[m][n] += 1
            hook = partial(self._gradient_ready, m, n)
            p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            start += p.numel()
        self._begin()

    def _piece(self, place: int) -> tuple[int, int]:
        """Return the master and the piece that an index of the vector belongs to."""
        masters = enumerate(self.edges)
        return next((m, n) for m, es in masters for n, (a, b) in enumerate(es) if a <= place < b)

    def _gradient_ready(self, m: int, n: int, _: Tensor) -> None:
        """Send the pieces that are complete, in their order; the header's piece goes last."""
        self.missing[m][n] -= 1
        while self.gone[m] < len(self.edges[m]) - 1 and not self.missing[m][self.gone[m]]:
            self._post(m, self.worker.replica.grad)

    def _post(self, m: int, gradient: Tensor | None) -> None:
        """Send the next piece of a push."""
        if self.sent:  # the parcels of the last push, which has all but arrived, are reused
            self.messages.wait_all(self.sent)
            self.sent = []
        push, n = self.pushes[m], self.gone[m]
        first, last = self.edges[m][n]
        if gradient is not None:
            start = self.spans[m][0]
            push.body[first - start : last - start].copy_(gradient[first:last])
        self.posted.append(self.messages.send_piece(push.pieces[n], self.masters[m]))
        self.gone[m] += 1

    def push(self, gradient: Tensor, examples: int, versions: list[int]) -> None:
        """Send g[m] to every master m; computed at these versions of w[m]."""
        self._send(PUSH, examples, versions, gradient)
        self.owed = True

    def _send(
        self, kind: int, examples: int, versions: list[int], gradient: Tensor | None = None
    ) -> None:
        """Send a message to every master, or what is left of it."""
        self.begin = time.perf_counter()
        mark = self.lifecycle.mark if self.lifecycle else Mark(0)
        for push, version in zip(self.pushes, versions, strict=True):
            push.header[:] = kind, examples, *mark, self.worker.board.stop_signal(), version
        for m, edges in enumerate(self.edges):
            while self.gone[m] < len(edges):
                self._post(m, gradient)
        self.sent, self.posted, self.unmetered = self.posted, [], True
        self._begin()

    def pull(self) -> int:
        """Copy w[m] from every master's answer, in the order of arrival.

        Returns:
            PUSH or STOP; MARK if a worker that is done has to take part in a checkpoint.
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
        self.owed = False
        if self.sent:
            self.messages.wait_all(self.sent)
            self.sent = []
        if self.unmetered:  # the cost of a push includes its answer
            self.unmetered = False
            size, messages = sum(push.nbytes for push in self.pushes), sum(map(len, self.edges))
            seconds = time.perf_counter() - self.begin
            meter = self.worker.comm.meter
            meter.add("push", payload=size, sent=size, messages=messages, seconds=seconds)
        kind = int(max(answer.header[0] for answer in self.answers))
        if kind == STOP and not self._closing:
            self.worker.training.stopped = "target_accuracy"
        return kind

    def close(self) -> None:
        """Tell the masters that this worker is done, and pull the final parameters."""
        worker, self._closing = self.worker, True
        if self.gate and worker.rank == 0:
            self.gate.end()
        if self.owed:
            self.pull()
            self.pause()  # the next message has to carry the mark to the other masters
        self._send(STOP if worker.training.early else DONE, 0, self.versions)
        while self.pull() == MARK:  # other workers continue, and have begun a checkpoint
            self.pause()
        if self.gate and worker.rank:  # worker 0 may need the message before this one's end
            self.gate.end()

    def pause(self) -> None:
        """Write this worker's part of the checkpoint that the masters announced, once."""
        lifecycle = self.lifecycle
        if lifecycle and self.mark.step > lifecycle.mark.step:
            lifecycle.take(self.worker, self.mark)


class MasterLink:
    """One master's end: it receives the workers' pushes and answers them.

    Args:
        worker: The master's process.
        params: w[m].
        cuts: Where in w[m] a new piece of a push begins.

    Attributes:
        pushes: The last push of each worker.
        requests: What the master waits for: a push of each worker, and worker 0's evaluation.
        early: By worker, the requests of the pieces that precede the header's.
        gate: Receives the messages of worker 0 while it evaluates, if it may have to.
    """

    def __init__(self, worker: Worker, params: Tensor, cuts: Sequence[int]) -> None:
        workers = worker.config.workers
        self.meter, self.params = worker.comm.meter, params
        self.messages = Messages(worker.comm)
        self.pushes = [Parcel(params, cuts) for _ in range(workers)]
        self.answers = [Parcel(params) for _ in range(workers)]
        self.requests: list[Any] = [MPI.REQUEST_NULL] * workers
        self.gate = MessageGate.if_needed(worker, self.messages)
        if self.gate:
            self.requests.append(self.gate.request)
        self.early: dict[int, list[Any]] = {}
        self._sent: dict[int, Any] = {}

    def expect(self, k: int) -> None:
        """Begin to receive the next push of worker k."""
        *self.early[k], self.requests[k] = self.messages.receive_pieces(self.pushes[k], k)

    def take_evaluation(self, gate: MessageGate) -> float:
        """Receive a message of worker 0; returns the seconds that it reports as evaluation."""
        before = gate.evaluated
        gate.take()
        self.requests[-1] = gate.request or MPI.REQUEST_NULL
        return gate.evaluated - before

    def answer(self, k: int, kind: int, mark: Mark, version: int, examples: int) -> None:
        """Begin to send w[m] to worker k, with its version and the examples behind it."""
        begin, answer = time.perf_counter(), self.answers[k]
        if k in self._sent:  # received long ago, since k has pushed again
            self.messages.wait(self._sent[k])
        answer.header[:5] = kind, *mark, version, examples
        answer.body.copy_(self.params)
        self._sent[k] = self.messages.send(answer, k)
        seconds, size = time.perf_counter() - begin, answer.nbytes
        self.meter.add("answer", payload=size, sent=size, messages=1, seconds=seconds)

    def flush(self) -> None:
        """Wait until all answers have left."""
        self.messages.wait_all(list(self._sent.values()))
