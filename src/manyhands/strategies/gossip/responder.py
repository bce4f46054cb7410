"""The thread that averages with neighbours while its worker computes (AD-PSGD)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from manyhands.comm.messages import Messages, Parcel
from manyhands.worker.evaluation_gate import STOP, MessageGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from manyhands.worker.worker import Worker

# The first number of a header: average with me; this worker is done; it is, and the run is over. An
# answer's says whether the run is over.
AVERAGE, DONE, OVER = range(3)


class Responder(threading.Thread):
    """Averages with each neighbour that asks, until all are done. Only this thread uses MPI.

    Attributes:
        x: This worker's parameters; shape (dim,).
        lock: Held to read or write x or `answered`.
        answered: The averages so far.
        over: Some worker has reached the run's target.
    """

    def __init__(self, worker: Worker, neighbours: Sequence[int]) -> None:
        super().__init__(name="responder", daemon=True)
        self.x: Tensor = worker.params.clone()
        self.meter = worker.comm.meter
        self.messages = Messages(worker.comm)
        self.messages.spins = 0  # this process has something to compute
        self.gate = MessageGate.if_needed(worker, self.messages)
        if self.gate:
            self.gate.asks = False
        self.asking = list(neighbours)
        self.theirs = [Parcel(self.x) for _ in neighbours]
        self.mine = [Parcel(self.x) for _ in neighbours]
        self.lock = threading.Lock()
        self.over = False
        self.answered = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Answer; an error is kept for the worker to raise."""
        try:
            self._serve()
        except BaseException as error:
            self.error = error
            if self.gate:  # or the worker would wait for a message that no thread receives
                self.gate.state = STOP

    def check(self) -> None:
        """Raise the error that ended the thread, if there is one."""
        if self.error:
            raise self.error

    def _serve(self) -> None:
        requests = [self._expect(k) for k in range(len(self.asking))]
        sent: list[Any] = [None] * len(self.asking)
        left = len(self.asking)
        if self.gate:
            requests.append(self.gate.request)
        while left:
            for k in self.messages.wait_some(requests):
                if k == len(self.asking):
                    requests[k] = self._take_evaluation()
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

        if self.gate:
            self.gate.end()

    def _take_evaluation(self) -> Any:
        """Receive a message of worker 0 about its evaluation, for the worker to see."""
        assert self.gate
        self.gate.take()
        return self.gate.request or MPI.REQUEST_NULL

    def _expect(self, k: int) -> Any:
        return self.messages.receive(self.theirs[k], self.asking[k])

    def _average(self, k: int) -> Any:
        """Send x to the neighbour that asked, and take the mean of both; so does the neighbour."""
        with self.lock:
            self.mine[k].body.copy_(self.x)
            self.x.add_(self.theirs[k].body).mul_(0.5)
            self.answered += 1
        self.mine[k].header[0] = OVER if self.over else AVERAGE
        size = self.mine[k].nbytes
        self.meter.add("average", payload=size, sent=size, messages=1, seconds=0.0)
        return self.messages.send(self.mine[k], self.asking[k])
