"""What a stage of a pipeline notes: its seconds, its memory, and a few steps in every detail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import torch

from manyhands.strategies.pipeline.schedule import Shape, chunks, ideal_bubble
from manyhands.strategies.pipeline.stage import Stage

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.worker.worker import Worker

# Steps whose every pass is kept, counted from the first that this process does: after warming up.
_SKIPPED, _KEPT = 10, 21
_COMPUTING = ("forward", "backward")


class Notes:
    """One stage's notes.

    Attributes:
        steps: For each step that is kept, its passes as [what, micro-batch, begin, end].
        boundary: Bytes of one micro-batch as it enters.
    """

    def __init__(self, worker: Worker, pipeline: Shape, index: int | None) -> None:
        assert isinstance(worker.replica, Stage)
        self.worker, self.pipeline, self.index = worker, pipeline, index
        self.stage = worker.replica
        self.steps: list[list[list[Any]]] = []
        self.boundary = self.in_flight = 0
        self.compute = self.wait = 0.0
        self._done = 0

    def probed(self, x: Tensor, in_flight: int) -> Tensor:
        """Return what the stage makes of `x`, and note the memory that its backward pass needs."""
        floating = self.index != 0 and x.is_floating_point()
        entering = x.detach().requires_grad_(floating)
        kept, y = self.stage.kept(lambda x: self.stage.compute(x, 0), entering)
        tells = self.stage.passes.tells
        self.stage.activations, self.boundary = in_flight * kept if tells else None, x.nbytes
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
        if not self.stage.passes.tells:
            return False
        return self._done == 1 or _SKIPPED < self._done <= _SKIPPED + _KEPT

    def spending(self, what: str, micro_batch: int | None) -> Span:
        """Note what the time inside is spent on."""
        return Span(self, what, micro_batch)

    def spent(self, what: str, micro_batch: int | None, begin: float, end: float) -> None:
        """Note that the time between was spent on something."""
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
        """Return what this process noted, for the record."""
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


class Span:
    """The time inside a `with`; no generator, since a step has twenty of them."""

    __slots__ = ("begin", "micro_batch", "notes", "what")

    def __init__(self, notes: Notes, what: str, micro_batch: int | None) -> None:
        self.notes, self.what, self.micro_batch = notes, what, micro_batch

    def __enter__(self) -> None:
        self.begin = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.notes.spent(self.what, self.micro_batch, self.begin, time.monotonic())


def merged(pipeline: Shape, noted: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all stages noted, the bubble in theory, and one step in full: a median one."""
    parts = noted[0]["micro_batches"]
    rows = [
        {k: v for k, v in note.items() if k not in ("steps", "micro_batches")} for note in noted
    ]
    return {
        "stages": rows,
        "cut": [row["layers"][0] for row in rows if row["stage"] and row["pipeline"] == 0],
        "micro_batches": parts,
        "ideal_bubble": round(ideal_bubble(pipeline.stages, parts), 6),
        "timeline": _timeline(noted),
    }


def _timeline(noted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every pass of one step in seconds from its begin: a step of median length."""
    kept = min(len(note["steps"]) for note in noted)
    if not kept:
        return []
    spans = []
    for i in range(min(1, kept - 1), kept):  # the very first only where there is no other
        events = [event for note in noted for event in note["steps"][i]]
        begin, end = min(e[2] for e in events), max(e[3] for e in events)
        spans.append((end - begin, begin, i))
    _, begin, chosen = sorted(spans)[len(spans) // 2]
    return [
        {
            "rank": note["rank"],
            "stage": note["stage"],
            "what": what,
            "micro_batch": micro_batch,
            "begin": round(start - begin, 6),
            "end": round(stop - begin, 6),
        }
        for note in noted
        for what, micro_batch, start, stop in note["steps"][chosen]
    ]
