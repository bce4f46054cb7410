"""A master of the parameter server: it waits for any worker, steps, and answers."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from mpi4py import MPI

from manyhands.comm.messages import Messages, Parcel
from manyhands.strategies import staleness
from manyhands.strategies.server.link import MARK, PUSH, STOP
from manyhands.strategies.server.snapshot import Cuts
from manyhands.strategies.server.state import Rules, Span
from manyhands.worker.checkpoint.lifecycle import Lifecycle
from manyhands.worker.hold import MessageHold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from manyhands.worker.worker import Worker


def serve(worker: Worker, server: Rules, spans: Sequence[Span]) -> dict[str, Any]:
    """Own a part of the vector until every worker is done; returns what this master noted."""
    span = spans[worker.rank - worker.config.workers]
    master, before = Master(worker, server, span), worker.state
    master.spans, worker.state = spans, master
    if before is None:
        master.begin()
    else:
        master.go_on(before.numbers, before.bodies)
    master.serve()
    worker.clock.spent = {"wait": master.idle, "update": master.busy}
    names = [la.name for la in worker.replica.layers if span[0] <= la.start < span[1]]
    return {"layers": names, **master.facts()}


class Master:
    """The owner of w[m]: waits for any worker, steps, answers.

    Attributes:
        clocks: c_k of the workers that are not done; the pushes of worker k so far.
        spans: Every master's part of the vector.
        held: Workers whose push waits for the others' (s = 0).
        due: Workers whose answer waits until they are no more than s ahead.
    """

    def __init__(self, worker: Worker, server: Rules, span: Span) -> None:
        self.worker, self.server = worker, server
        self.spans: Sequence[Span] = [span]
        self.messages = Messages(worker.comm)
        self.params = worker.params[slice(*span)]
        self.grad = worker.replica.grad[slice(*span)]
        self.optimizer = worker.optimizer
        groups = self.optimizer.param_groups  # whose rates an earlier master may have changed
        self.rates = [group.setdefault("initial_lr", group["lr"]) for group in groups]
        cuts = server.cuts(worker, span)
        self.pushes = [Parcel(self.params, cuts) for _ in range(worker.config.workers)]
        self.answers = [Parcel(self.params) for _ in range(worker.config.workers)]
        self.requests: list[Any] = [MPI.REQUEST_NULL] * worker.config.workers
        self.before: dict[int, list[Any]] = {}  # by worker: the pieces that come before the last
        self.sent: dict[int, Any] = {}
        self.clocks = dict.fromkeys(range(worker.config.workers), 0)
        self.left: dict[int, int] = {}  # c_k of the workers that are done
        self.told: dict[int, int] = {}  # by worker that is done: the last checkpoint it knows of
        self.cuts = Cuts(worker, cast("Lifecycle", worker.hook(Lifecycle)))
        self.held: set[int] = set()
        self.due: set[int] = set()
        self.version = 0  # updates of w[m] so far
        self.examples = 0  # behind all of these
        self.hold = MessageHold.made(worker, self.messages)
        if self.hold:
            self.requests.append(self.hold.request)
        self.status = PUSH
        self.stale: Counter[int] = Counter()
        self.queues: Counter[int] = Counter()
        self.lead = 0
        self.idle = self.busy = 0.0

    def begin(self) -> None:
        """Wait for everyone's first push."""
        for k in range(len(self.pushes)):
            self._expect(k)

    def _expect(self, k: int) -> None:
        """Begin to receive the next push of worker k."""
        *self.before[k], self.requests[k] = self.messages.receive_pieces(self.pushes[k], k)

    def go_on(self, counts: Mapping[str, Any], bodies: Sequence[Tensor]) -> None:
        """Take up what a checkpoint holds: the counts, then the pushes that were in flight.

        Every worker that has pushed, also one that was done, waits for the answer to its last push.
        """
        self.clocks = dict(enumerate(counts["clocks"]))
        self.version, self.lead = counts["version"], counts["lead"]
        config = self.worker.config
        each = self.server.examples_per_update(config.batch_size, config.workers)
        # Checkpoints of older versions do not have the examples.
        self.examples = counts.get("examples", self.version * each)
        self.stale, self.queues = (
            Counter({int(n): times for n, times in counts[name]}) for name in ("stale", "queues")
        )
        self.idle, self.busy = counts["idle"], counts["busy"]
        for (k, examples, version), body in zip(counts["log"], bodies, strict=True):
            self.pushes[k].header[:] = PUSH, examples, 0, 0, 0, version
            self.pushes[k].body.copy_(body)
            self._apply(k)
        for k, pushed in self.clocks.items():
            if pushed:
                self.due.add(k)
            else:
                self._expect(k)
        self._release()

    def serve(self) -> None:
        """Answer pushes until all workers are done, then hand w[m] over to all of them."""
        begin = time.monotonic()
        while self.clocks:
            arrived = self.messages.wait_some(self.requests)
            came = time.monotonic()
            pushed = [k for k in arrived if k < len(self.pushes)]
            if len(pushed) < len(arrived):
                self._hear()
            self.queues[len(pushed)] += bool(pushed)
            for k in pushed:
                self._take(k)
            self._release()
            self.worker.board.note(self.worker.number, self.version, "serve")
            self.idle += came - begin
            begin = time.monotonic()
            self.busy += begin - came
        if self.hold:
            self.hold.end()
        for k in range(len(self.answers)):
            self._answer(k, self.status)
        self.messages.wait_all(list(self.sent.values()))

    def _hear(self) -> None:
        """Take in that worker 0 evaluates, or has done so: that time is nobody's training."""
        assert self.hold
        before, clock = self.hold.evaluated, self.worker.clock
        self.hold.take()
        self.requests[-1] = self.hold.request or MPI.REQUEST_NULL
        evaluated = self.hold.evaluated - before
        self.idle -= evaluated
        clock.paused += evaluated
        clock.evaluation += evaluated

    def _take(self, k: int) -> None:
        """Look at what worker k has sent."""
        self.messages.wait_all(self.before[k])  # they were sent before, and are all but here
        if self.cuts.see(k, self.pushes[k], set(self.clocks)):
            self._tell_done()
        kind, _, known = self.pushes[k].header[:3].tolist()
        if kind == PUSH:
            self._apply(k)
            return
        self.left[k] = self.clocks.pop(k)
        self.told[k] = known
        self.status = STOP if kind == STOP else self.status
        self._tell_done()

    def _tell_done(self) -> None:
        """Let the workers that are done take part in the newest checkpoint, too."""
        for k, known in self.told.items():
            if known < self.cuts.mark.step:
                self.told[k] = self.cuts.mark.step
                self._answer(k, MARK)

    def _apply(self, k: int) -> None:
        """Step along worker k's push, or hold it until everyone's is there (s = 0)."""
        if self.server.staleness == 0:
            self.held.add(k)
        else:
            tau = self.version - int(self.pushes[k].header[5])
            self.grad.copy_(self.pushes[k].body)
            self._step(tau, [k])

    def _step(self, tau: int, pushers: list[int]) -> None:
        """Step along the gradient; `tau` is its staleness."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self._factor(tau)
        self.optimizer.step()
        self.version += 1
        self.worker.course.step = self.version
        for k in pushers:
            self.examples += int(self.pushes[k].header[1])
            self.clocks[k] += 1
            self.stale[tau] += 1
        self.due.update(pushers)

    def _factor(self, tau: int) -> float:
        """Return what the learning rate is multiplied by, here in the run and so stale."""
        factor = 1.0
        computation = self.worker.computation
        if rate := computation.rate:
            planned = computation.planned
            updates = max(planned) if self.server.staleness == 0 else sum(planned)
            factor = rate.at(self.version * rate.steps / updates)
        return factor / max(1, tau) if self.server.staleness_aware else factor

    def _release(self) -> None:
        """Answer whom the waiting rule lets go on: c_k − min c ≤ s."""
        if self.held and len(self.held) == len(self.clocks):
            self._sum(sorted(self.held))
        mark = self.cuts.due(self._pushes()) if self.due and self.status != STOP else None
        if mark:  # whoever is answered from here on, and someone is, carries it to the others
            self.cuts.begin(mark, set(self.clocks))
            self._tell_done()
        slowest = min(self.clocks.values(), default=0)
        bound = self.server.staleness
        for k in sorted(self.due):
            lead = self.clocks[k] - slowest
            if bound is None or lead <= bound:
                self.lead = max(self.lead, lead)
                self.due.remove(k)
                self._expect(k)
                self._answer(k, self.status)

    def _pushes(self) -> int:
        return sum(self.clocks.values()) + sum(self.left.values())

    def _sum(self, pushers: list[int]) -> None:
        """Step once for all: the mean over the examples of all pushes."""
        examples = sum(int(self.pushes[k].header[1]) for k in pushers)
        self.grad.zero_()
        for k in pushers:
            self.grad.add_(self.pushes[k].body, alpha=int(self.pushes[k].header[1]) / examples)
        if mechanism := self.worker.computation.mechanism:  # its noise is still missing
            mechanism.guard(self.grad, examples)
        self.held.clear()
        self._step(0, pushers)

    def _answer(self, k: int, kind: int) -> None:
        begin, answer = time.perf_counter(), self.answers[k]
        if k in self.sent:  # received long ago, since k has pushed again
            self.messages.wait(self.sent[k])
        answer.header[:5] = kind, *self.cuts.mark, self.version, self.examples
        answer.body.copy_(self.params)
        self.sent[k] = self.messages.send(answer, k)
        self.worker.comm.meter.add(
            "answer",
            payload=answer.nbytes,
            sent=answer.nbytes,
            messages=1,
            seconds=time.perf_counter() - begin,
        )

    def counts(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside w[m] and the optimizer; the log is still empty."""
        clocks = {**self.clocks, **self.left}
        return {
            "clocks": [clocks[k] for k in sorted(clocks)],
            "version": self.version,
            "lead": self.lead,
            "stale": sorted(self.stale.items()),
            "queues": sorted(self.queues.items()),
            "idle": self.idle,
            "busy": self.busy,
            "log": [],
            "examples": self.examples,
        }

    def facts(self) -> dict[str, Any]:
        """Return what this master noted, as the record states it."""
        looks = self.queues.total()
        return {
            "rank": self.worker.number,
            "parameters": len(self.params),
            "updates": self.version,
            "pushes": self.stale.total(),
            "idle": round(self.idle, 6),
            "busy": round(self.busy, 6),
            "queue": {
                "mean": sum(n * times for n, times in self.queues.items()) / looks,
                "max": max(self.queues),
            },
            "lead": self.lead,
            "staleness": staleness.describe([self.stale]),
        }


def narrow(worker: Worker, span: Span) -> None:
    """Leave the optimizer with what lies within `span` of the vector."""
    for group in worker.optimizer.param_groups:
        group["whole"] = group["params"]
        group["params"] = _within(worker, group["whole"], span)


def widen(worker: Worker, span: Span) -> None:
    """Let the optimizer also step what lies within `span`, of which it remembers nothing."""
    for group in worker.optimizer.param_groups:
        group["params"] = [*group["params"], *_within(worker, group["whole"], span)]


def _within(worker: Worker, params: list[Any], span: Span) -> list[Tensor]:
    """Return what lies within `span` of parameters that are views of the vector."""
    start, stop = span
    found: list[Tensor] = []
    for p in params:
        first, last = p.storage_offset(), p.storage_offset() + p.numel()
        if start <= first and last <= stop:
            found.append(p)
        elif first < stop and start < last:  # a part of the flat vector
            found.append(worker.replica.slice(max(start, first), min(stop, last)))
    return found


def merged(noted: list[dict[str, Any] | None]) -> dict[str, Any]:
    """Return the masters' notes, and over all of them the staleness and the lead."""
    masters = [note for note in noted if note]
    counts = [
        Counter({int(tau): n for tau, n in note["staleness"]["histogram"].items()})
        for note in masters
    ]
    return {
        "staleness": staleness.describe(counts),
        "lead": max(note["lead"] for note in masters),
        "masters": masters,
    }
