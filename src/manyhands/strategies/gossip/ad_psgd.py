"""Gossip among workers that do not step together: two average whenever one of them asks."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from manyhands.comm.messages import Messages, Parcel
from manyhands.data.shuffle import draws
from manyhands.worker.hold import STOP, MessageHold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from manyhands.strategies.gossip.topology import Graph
    from manyhands.worker.worker import Worker

# What the first number of a header says: take part in an average; I am done; I am, and so is the
# run. An answer's says whether the run is over.
AVERAGE, DONE, OVER = range(3)


def work(worker: Worker, graph: Graph) -> dict[str, Any]:
    """Train this worker at its own pace; returns what it noted.

    `taus` counts its updates by staleness: how many averages have moved x_i since x̂_i was read.
    """
    neighbours = graph[worker.rank]
    if worker.rank % 2 and neighbours:
        return _answer(worker, neighbours)
    return _ask(worker, neighbours)


def _ask(worker: Worker, neighbours: Sequence[int]) -> dict[str, Any]:
    """Be one of those that ask: while the gradient is computed, the average is under way."""
    x, messages = worker.params, Messages(worker.comm)
    mine, theirs = Parcel(x), Parcel(x)
    worker.evaluation.hold = hold = MessageHold.made(worker, messages)
    asked = 0
    for batch in worker.batches():
        requests = []
        if neighbours:
            key = (worker.config.seed, worker.rank, worker.step, "pairing")
            j = neighbours[int(draws(1, len(neighbours), *key)[0])]
            mine.header[0] = AVERAGE
            mine.body.copy_(x)
            requests = [messages.receive(theirs, j), messages.send(mine, j)]
        g = worker.gradient(batch._replace(weight=batch.weight * worker.comm.size))
        if neighbours:
            with worker.exchanging():
                messages.wait_all(requests)
                x.add_(theirs.body).mul_(0.5)
            asked += 1
            worker.comm.meter.add(
                "average", payload=x.nbytes, sent=mine.nbytes, messages=1, seconds=0.0
            )
        worker.update(g)
        if theirs.header[0] == OVER:
            worker.course.stopped = "target_accuracy"
    mine.header[0] = OVER if worker.course.early else DONE
    messages.wait_all([messages.send(mine, j) for j in neighbours])
    if hold:
        hold.end()
    tau = 1 if neighbours else 0  # one average within each gradient
    return {"asked": asked, "answered": 0, "taus": [(tau, worker.step)]}


def _answer(worker: Worker, neighbours: Sequence[int]) -> dict[str, Any]:
    """Be one of those that are asked: a thread answers, whatever is computed meanwhile."""
    shared = Answering(worker, neighbours)
    worker.evaluation.hold = shared.hold
    shared.start()
    taus: Counter[int] = Counter()
    for batch in worker.batches():
        with shared.lock:
            worker.params.copy_(shared.x)  # what the gradient is computed at: it must not move
            seen = shared.answered
        g = worker.gradient(batch._replace(weight=batch.weight * worker.comm.size))
        with shared.lock:
            worker.params.copy_(shared.x)
            worker.update(g)
            shared.x.copy_(worker.params)
            taus[shared.answered - seen] += 1
        if shared.over:
            worker.course.stopped = "target_accuracy"
        shared.check()
    shared.join()
    shared.check()
    worker.params.copy_(shared.x)
    return {"asked": 0, "answered": shared.answered, "taus": [*taus.items()]}


class Answering(threading.Thread):
    """Averages with whoever asks, until all who may ask are done. Nobody else uses MPI meanwhile.

    Attributes:
        x: This worker's parameters; shape (dim,).
        lock: Held by who reads or writes x, or counts what became of it.
        answered: The averages so far.
        over: Somebody has reached the run's target.
    """

    def __init__(self, worker: Worker, neighbours: Sequence[int]) -> None:
        super().__init__(name="answering", daemon=True)
        self.x: Tensor = worker.params.clone()
        self.meter = worker.comm.meter
        self.messages = Messages(worker.comm)
        self.messages.spins = 0  # this process has something to compute
        self.hold = MessageHold.made(worker, self.messages)
        if self.hold:
            self.hold.asks = False
        self.asking = list(neighbours)
        self.theirs = [Parcel(self.x) for _ in neighbours]
        self.mine = [Parcel(self.x) for _ in neighbours]
        self.lock = threading.Lock()
        self.over = False
        self.answered = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Answer; what goes wrong is kept for the worker to raise."""
        try:
            self._serve()
        except BaseException as error:
            self.error = error
            if self.hold:  # the worker must not wait for a message that nobody takes in
                self.hold.state = STOP

    def check(self) -> None:
        """Raise what went wrong."""
        if self.error:
            raise self.error

    def _serve(self) -> None:
        requests = [self._expect(k) for k in range(len(self.asking))]
        sent: list[Any] = [None] * len(self.asking)
        left = len(self.asking)
        if self.hold:
            requests.append(self.hold.request)
        while left:
            for k in self.messages.wait_some(requests):
                if k == len(self.asking):
                    requests[k] = self._hear()
                    continue
                if sent[k]:
                    self.messages.wait_all([sent[k]])  # received, since it has asked again
                    sent[k] = None
                if (kind := self.theirs[k].header[0]) == AVERAGE:
                    sent[k] = self._average(k)
                    requests[k] = self._expect(k)
                else:
                    self.over = self.over or kind == OVER
                    left -= 1

        if self.hold:
            self.hold.end()

    def _hear(self) -> Any:
        """Take in that worker 0 evaluates, or has done so, for the worker to see."""
        assert self.hold
        self.hold.take()
        return self.hold.request or MPI.REQUEST_NULL

    def _expect(self, k: int) -> Any:
        return self.messages.receive(self.theirs[k], self.asking[k])

    def _average(self, k: int) -> Any:
        """Give x to who asked, and take the mean of both: both have it then."""
        with self.lock:
            self.mine[k].body.copy_(self.x)
            self.x.add_(self.theirs[k].body).mul_(0.5)
            self.answered += 1
        self.mine[k].header[0] = OVER if self.over else AVERAGE
        size = self.mine[k].nbytes
        self.meter.add("average", payload=size, sent=size, messages=1, seconds=0.0)
        return self.messages.send(self.mine[k], self.asking[k])
