"""What masters and workers of the parameter server share: rules, counts, and where they resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.worker.worker import Worker

Span = tuple[int, int]  # a part of the vector: start, stop

# What a master has counted before its first push.
FRESH: Mapping[str, Any] = {
    "clocks": [], "version": 0, "lead": 0, "stale": [], "queues": [], "idle": 0.0, "busy": 0.0,
    "log": [], "examples": 0,
}  # fmt: skip


class Rules(Protocol):
    """By which rules workers push, and masters answer; `Server`'s options."""

    @property
    def staleness(self) -> int | None:
        """How many steps a worker may be ahead of the slowest; None: any number."""

    @property
    def staleness_aware(self) -> bool:
        """Whether a late push gets a smaller rate."""

    @property
    def prefetch(self) -> int:
        """1 if a worker computes on while the answer to its push travels."""

    @property
    def layerwise(self) -> bool:
        """Whether a layer's gradient is pushed as soon as the backward pass has it."""

    def cuts(self, worker: Worker, span: Span) -> list[int]:
        """Return where in a master's part a new piece of a push begins."""

    def examples_per_update(self, batch_size: int, workers: int) -> int:
        """Return how many examples stand behind one update."""


@dataclass(frozen=True)
class Pause:
    """What a process resumes from when its loop begins anew.

    Attributes:
        numbers: What a master had counted, or which versions of w[m] a worker's copy has seen.
        bodies: The pushes that a master's part of a checkpoint has logged.
        spans: Each master's part of the vector, where some have taken over others'.
    """

    numbers: Mapping[str, Any]
    bodies: Sequence[Tensor] = ()
    spans: Sequence[Span] | None = None
