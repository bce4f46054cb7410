"""A master of the parameter server: it owns w[m], steps along pushes, and answers them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from manyhands.strategies.server.link import MasterLink
from manyhands.strategies.server.ownership import layer_cuts, layer_names
from manyhands.strategies.server.snapshot import Snapshot
from manyhands.strategies.server.ssp_clock import SSPClock
from manyhands.strategies.server.state import MARK, PUSH, STOP, ResumePoint, Rules, Span
from manyhands.strategies.server.statistics import Statistics
from manyhands.worker.checkpoint.save_or_stop import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.worker.worker import Worker


class Master:
    """The owner of w[m], the span of the vector that is this process's.

    Attributes:
        clock: c_k of every worker, and the waiting rule.
        spans: Every master's span of the vector.
        held: Workers whose push waits for the others' (s = 0).
        known: For each worker that is done, the last checkpoint that it knows of.
        version: The updates of w[m] so far.
        examples: The examples behind all of these.
        status: The kind of the next answers: PUSH, or STOP once a worker has ended the run.
    """

    def __init__(self, worker: Worker, server: Rules, spans: Sequence[Span]) -> None:
        self.worker, self.server, self.spans = worker, server, spans
        self.span = spans[worker.rank - worker.config.workers]
        self.params = worker.params[slice(*self.span)]
        self.grad = worker.replica.grad[slice(*self.span)]
        self.optimizer = worker.optimizer
        groups = self.optimizer.param_groups  # an earlier master may have changed their rates
        self.rates = [group.setdefault("initial_lr", group["lr"]) for group in groups]
        cuts = layer_cuts(worker, self.span) if server.layerwise else []
        self.link = MasterLink(worker, self.params, cuts)
        self.pushes = self.link.pushes
        self.clock = SSPClock(worker.config.workers, server.staleness)
        self.snapshot = Snapshot(worker, cast("Lifecycle", worker.hook(Lifecycle)))
        self.statistics = Statistics()
        self.held: set[int] = set()
        self.known: dict[int, int] = {}
        self.version = self.examples = 0
        self.status = PUSH

    def begin(self) -> None:
        """Expect the first pushes, or continue from what the process resumes from."""
        resumed, self.worker.state = self.worker.state, self
        self._began = self._came = time.monotonic()
        if resumed is None:
            for k in self.clock.running:
                self.link.expect(k)
        else:
            self._resume(resumed)

    def _resume(self, resumed: ResumePoint) -> None:
        """Take back a checkpoint's counts, then apply the pushes that were in flight.

        Every worker that has pushed, also one that was done, waits for the answer to its last push.
        """
        counts = resumed.numbers
        self.clock.restore(counts["clocks"])
        self.version, self.clock.lead = counts["version"], counts["lead"]
        config = self.worker.config
        each = self.server.examples_per_update(config.batch_size, config.workers)
        # Checkpoints of older versions do not have the examples.
        self.examples = counts.get("examples", self.version * each)
        self.statistics.restore(counts)
        for (k, examples, version), body in zip(counts["log"], resumed.bodies, strict=True):
            self.pushes[k].header[:] = PUSH, examples, 0, 0, 0, version
            self.pushes[k].body.copy_(body)
            self.apply(k)
        for k, pushed in self.clock.running.items():
            if pushed:
                self.clock.waiting.add(k)
            else:
                self.link.expect(k)
        self.answer()

    def wait_for_pushes(self) -> Iterator[int]:
        """Wait for any worker, and yield the workers that have pushed a gradient.

        A worker's message is looked at when it is yielded: a checkpoint that begins with it has the
        pushes yielded before.
        """
        link = self.link
        arrived = link.messages.wait_some(link.requests)
        self._came = time.monotonic()
        pushed = [k for k in arrived if k < len(self.pushes)]
        if len(pushed) < len(arrived):
            self._take_evaluation()
        self.statistics.queues[len(pushed)] += bool(pushed)
        for k in pushed:
            message = link.pushes[k]
            if link.early[k]:  # sent before the header, so they have all but arrived
                link.messages.wait_all(link.early[k])
            if self.snapshot.see(k, message, set(self.clock.running)):
                self._announce_to_done()
            kind, _, known = message.header[:3].tolist()
            if kind == PUSH:
                yield k
            else:
                self.clock.finish(k)
                self.known[k] = known
                self.status = STOP if kind == STOP else self.status
                self._announce_to_done()

    def _take_evaluation(self) -> None:
        """Learn that worker 0 evaluates, or has done so: that time is not training."""
        assert self.link.gate
        evaluated, clock = self.link.take_evaluation(self.link.gate), self.worker.clock
        self.statistics.idle -= evaluated
        clock.paused += evaluated
        clock.evaluation += evaluated

    def _announce_to_done(self) -> None:
        """Let the workers that are done take part in the newest checkpoint, too."""
        for k, known in self.known.items():
            if known < self.snapshot.mark.step:
                self.known[k] = self.snapshot.mark.step
                self.link.answer(k, MARK, self.snapshot.mark, self.version, self.examples)

    def apply(self, k: int) -> None:
        """Step along worker k's push, or hold it until all workers have pushed (s = 0)."""
        if self.server.staleness == 0:
            self.held.add(k)
        else:
            tau = self.version - int(self.pushes[k].header[5])
            self.grad.copy_(self.pushes[k].body)
            self.step(tau, [k])

    def step(self, tau: int, pushers: list[int]) -> None:
        """Do w[m] ← w[m] − η_τ g[m] and count the pushes; `tau` is their staleness."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.rate_factor(tau)
        self.optimizer.step()
        self.version += 1
        self.worker.training.step = self.version
        for k in pushers:
            self.examples += int(self.pushes[k].header[1])
            self.statistics.stale[tau] += 1
            self.clock.tick(k)

    def rate_factor(self, tau: int) -> float:
        """Return η_τ / η: the schedule's factor, divided by the staleness where that is asked."""
        factor = 1.0
        computation = self.worker.computation
        if rate := computation.rate:
            planned = computation.planned
            updates = max(planned) if self.server.staleness == 0 else sum(planned)
            factor = rate.at(self.version * rate.steps / updates)
        return factor / max(1, tau) if self.server.staleness_aware else factor

    def answer(self) -> None:
        """Answer the workers that the waiting rule lets continue: c_k − min c ≤ s."""
        clock, snapshot = self.clock, self.snapshot
        if self.held and len(self.held) == len(clock.running):
            self._step_along_mean(sorted(self.held))
        mark = snapshot.due(clock) if clock.waiting and self.status != STOP else None
        if mark:  # some worker is answered below, and carries it to the others
            snapshot.begin(mark, set(clock.running))
            self._announce_to_done()
        for k in clock.release():
            self.link.expect(k)
            self.link.answer(k, self.status, snapshot.mark, self.version, self.examples)
        self.worker.board.note(self.worker.number, self.version, "serve")
        self.statistics.idle += self._came - self._began
        self._began = time.monotonic()
        self.statistics.busy += self._began - self._came

    def _step_along_mean(self, pushers: list[int]) -> None:
        """Step once for all workers: along the mean over the examples of all pushes."""
        examples = sum(int(self.pushes[k].header[1]) for k in pushers)
        self.grad.zero_()
        for k in pushers:
            self.grad.add_(self.pushes[k].body, alpha=int(self.pushes[k].header[1]) / examples)
        if mechanism := self.worker.computation.mechanism:  # its noise is still missing
            mechanism.guard(self.grad, examples)
        self.held.clear()
        self.step(0, pushers)

    def hand_over(self) -> dict[str, Any]:
        """Send the final w[m] to all workers; returns this master's facts for the record."""
        if self.link.gate:
            self.link.gate.end()
        for k in range(len(self.pushes)):
            self.link.answer(k, self.status, self.snapshot.mark, self.version, self.examples)
        self.link.flush()
        self.worker.clock.spent = {"wait": self.statistics.idle, "update": self.statistics.busy}
        return {
            "layers": layer_names(self.worker, self.span),
            "rank": self.worker.number,
            "parameters": len(self.params),
            "updates": self.version,
            "lead": self.clock.lead,
            **self.statistics.facts(),
        }

    def counts(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside w[m] and the optimizer; the log is still empty."""
        return {
            "clocks": self.clock.counts(),
            "version": self.version,
            "lead": self.clock.lead,
            **self.statistics.state(),
            "log": [],
            "examples": self.examples,
        }
