"""What a stage of a pipeline records: its seconds, its memory, and every pass of a few steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import torch

from manyhands.model.replica import Loss
from manyhands.strategies.pipeline.schedule import Shape, chunks, ideal_bubble
from manyhands.strategies.pipeline.stage import Stage

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.worker.worker import Batch, Worker

# Steps whose every pass is kept, counted from the first that this process does: after warming up.
_SKIPPED, _KEPT = 10, 21
_COMPUTING = ("forward", "backward")


class Timeline:
    """One stage's measurements.

    Attributes:
        steps: For each step that is kept, its passes as [what, micro-batch, begin, end].
        boundary: Bytes of one micro-batch as it enters.
        in_flight: How many micro-batches the stage holds at once, at the most.
        compute: Seconds of this step's passes.
        wait: Seconds of this step spent waiting for a neighbour.
    """

    def __init__(self, worker: Worker, pipeline: Shape, index: int | None) -> None:
        assert isinstance(worker.replica, Stage)
        self.worker, self.pipeline, self.index = worker, pipeline, index
        self.stage = worker.replica
        self.steps: list[list[list[Any]]] = []
        self.boundary = self.in_flight = 0
        self.compute = self.wait = 0.0
        self._done = 0

    def probe(self, x: Tensor, in_flight: int) -> Tensor:
        """Return the stage's output for `x`, and record the memory that its backward pass needs."""
        floating = self.index != 0 and x.is_floating_point()
        entering = x.detach().requires_grad_(floating)
        kept, y = self.stage.kept(lambda x: self.stage.compute(x, 0), entering)
        records = self.stage.passes.records
        self.stage.activations, self.boundary = in_flight * kept if records else None, x.nbytes
        self.in_flight = in_flight
        return cast("Tensor", y.detach())

    def begin(self) -> None:
        """Begin a step."""
        self.compute = self.wait = 0.0
        self._done += 1
        if self._keeps:
            self.steps.append([])

    @property
    def _micro_batches(self) -> int:
        """Of a whole batch."""
        config = self.worker.config
        return len(chunks(config.batch_size // config.workers, self.pipeline.parts))

    @property
    def _keeps(self) -> bool:
        if not self.stage.passes.records:
            return False
        return self._done == 1 or _SKIPPED < self._done <= _SKIPPED + _KEPT

    def record(self, what: str, micro_batch: int | None) -> Interval:
        """Record what the time inside is spent on."""
        return Interval(self, what, micro_batch)

    def add(self, what: str, micro_batch: int | None, begin: float, end: float) -> None:
        """Record what the time between was spent on."""
        if what in _COMPUTING:
            self.compute += end - begin
        elif what == "wait":
            self.wait += end - begin
        if self._keeps:
            self.steps[-1].append([what, micro_batch, begin, end])

    def end(self, updating: float = 0.0) -> None:
        """End the step's passes: what was neither computing nor waiting was communicating.

        Args:
            updating: Seconds of them that the optimizer has taken already.
        """
        clock = self.worker.clock
        begun = clock.begun[-1]
        clock.computed.append(begun + self.compute)
        clock.exchange(begun + self.compute, time.monotonic() - updating)
        clock.waited.append(self.wait)

    def facts(self) -> dict[str, Any]:
        """Return this process's measurements, as the run's record states them."""
        stage, clock = self.stage, self.worker.clock
        spans = [] if self.index is None else stage.spans[self.index]
        held = {(la.start, la.stop): la.name for la in stage.layers}
        names = [name for (start, _), name in held.items() if any(a <= start < b for a, b in spans)]
        states = self.worker.optimizer.state.values()
        memory = [v for state in states for v in state.values() if isinstance(v, torch.Tensor)]
        compute = sum(c - b for b, c in zip(clock.begun, clock.computed, strict=True))
        spent = sum(e - b for b, e in zip(clock.begun, clock.exchanged, strict=True))
        return {
            "rank": self.worker.rank,
            "stage": self.index,
            "pipeline": self.worker.rank % self.worker.config.workers,
            "layers": names,
            "parameters": len(stage.params),
            "compute": round(compute, 6),
            "wait": round(sum(clock.waited), 6),
            "communicate": round(spent - compute - sum(clock.waited), 6),
            "bubble": round(1 - compute / spent, 6) if spent else None,
            "in_flight": self.in_flight,
            "micro_batches": self._micro_batches,
            "bytes": {
                "parameters": stage.params.nbytes,
                "gradients": stage.grad.nbytes,
                "optimizer": sum(v.nbytes for v in memory if v.dim()),
                "activations": stage.activations,
                "boundary": self.boundary,
            },
            "steps": self.steps,
        }


class TimedStage:
    """A stage's passes with their times, their random keys and their losses.

    Attributes:
        passes: What computes.
        losses: Each micro-batch's loss: computed by the last stage, sent back by the others.
        member: Which of the W pipelines the stage belongs to.
        first: Batches enter here.
        last: The loss is computed here.
    """

    def __init__(self, worker: Worker, pipeline: Shape) -> None:
        index, self.member = divmod(worker.rank, worker.config.workers)
        self.worker, self.timeline = worker, Timeline(worker, pipeline, index)
        self.stage = self.timeline.stage
        self.first, self.last = index == 0, index == pipeline.stages - 1
        self.passes = self.stage.passes
        self.losses: dict[int, Loss] = {}
        self._seen: list[Loss] = []

    def begin(self) -> None:
        """Begin a step."""
        self.timeline.begin()
        self.passes.begin()
        self._seen = []

    def forward(self, i: int, a: Tensor, y: Tensor, rows: slice, total: int) -> Tensor:
        """Return f_s(a; w_s); the last stage also computes the loss.

        Args:
            i: Which micro-batch.
            a: What enters the stage.
            y: The micro-batch's targets.
            rows: Where in the batch it is.
            total: The examples behind the whole update, over all workers.
        """
        worker, stage = self.worker, self.stage
        if not self.first:  # a view of a parcel that is used again
            a = a.detach().requires_grad_()
        worker.board.note(worker.rank, worker.step, "gradient")
        with self.timeline.record("forward", i), stage.masked(rows):
            b = self.passes.forward(i, a, worker.config.seed, self.member, worker.step, i)
            if self.last and (loss := self.passes.loss(i, y, total)):
                self.losses[i] = loss
        return b

    def backward(self, i: int, delta: Tensor | None) -> Tensor:
        """Add δ ∂b/∂w_s to g_s; returns δ ∂b/∂a. The last stage has no δ: it starts from ℓ_i."""
        self.worker.board.note(self.worker.rank, self.worker.step, "gradient")
        with self.timeline.record("backward", i), self.stage.recomputing():
            gradient = self.passes.backward(i, delta)
        if self.passes.records:
            self._seen.append(self.losses[i])
        return gradient

    def finish(self, batch: Batch) -> None:
        """End a step's passes, and note its loss: g_s is this pipeline's share of the gradient."""
        self.passes.finish(batch.examples, batch.weight, self.timeline.record)
        if self.passes.records:
            seen = self._seen
            examples = sum(loss.examples for loss in seen)
            mean = sum(loss.mean * loss.examples for loss in seen) / max(1, examples)
            self.worker.note_loss(Loss(mean, sum(loss.correct for loss in seen), examples))
        else:
            self.worker.note_nothing(batch.examples)
        self.timeline.end()

    def update(self) -> None:
        """Do w_s ← w_s − η g_s."""
        with self.timeline.record("update", None):
            self.worker.update(self.stage.grad)


class Interval:
    """The time inside a `with`; not a generator, since a step has twenty of them."""

    __slots__ = ("begin", "micro_batch", "timeline", "what")

    def __init__(self, timeline: Timeline, what: str, micro_batch: int | None) -> None:
        self.timeline, self.what, self.micro_batch = timeline, what, micro_batch

    def __enter__(self) -> None:
        self.begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.timeline.add(self.what, self.micro_batch, self.begin, time.monotonic())


def merge(pipeline: Shape, facts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all stages' facts, the ideal bubble, and one step in full: a median one."""
    parts = facts[0]["micro_batches"]
    rows = [
        {k: v for k, v in stage.items() if k not in ("steps", "micro_batches")} for stage in facts
    ]
    return {
        "stages": rows,
        "cut": [row["layers"][0] for row in rows if row["stage"] and row["pipeline"] == 0],
        "micro_batches": parts,
        "ideal_bubble": round(ideal_bubble(pipeline.stages, parts), 6),
        "timeline": _median_step(facts),
    }


def _median_step(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every pass of one step in seconds from its begin: a step of median length."""
    kept = min(len(stage["steps"]) for stage in facts)
    if not kept:
        return []
    spans = []
    for i in range(min(1, kept - 1), kept):  # the very first only where there is no other
        events = [event for stage in facts for event in stage["steps"][i]]
        begin, end = min(e[2] for e in events), max(e[3] for e in events)
        spans.append((end - begin, begin, i))
    _, begin, chosen = sorted(spans)[len(spans) // 2]
    return [
        {
            "rank": stage["rank"],
            "stage": stage["stage"],
            "what": what,
            "micro_batch": micro_batch,
            "begin": round(start - begin, 6),
            "end": round(stop - begin, 6),
        }
        for stage in facts
        for what, micro_batch, start, stop in stage["steps"][chosen]
    ]
