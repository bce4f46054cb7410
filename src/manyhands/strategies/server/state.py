"""What masters and workers of the parameter server share: options, headers, resume points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Span = tuple[int, int]  # of the vector: start, stop

# The first number of a header. A push's others: its examples, the worker's last checkpoint (step
# and signal), the signal that asked the worker to stop, and the version of w[m] that the gradient
# was computed at. An answer's: the group's last checkpoint (step and signal), the version of w[m]
# that it brings, and the examples behind that version.
PUSH, DONE, STOP, MARK = range(4)

# A master's counts before its first push.
FRESH: Mapping[str, Any] = {
    "clocks": [], "version": 0, "lead": 0, "stale": [], "queues": [], "idle": 0.0, "busy": 0.0,
    "log": [], "examples": 0,
}  # fmt: skip


class Rules(Protocol):
    """The options of `Server` that decide how workers push and masters answer."""

    @property
    def staleness(self) -> int | None:
        """How many steps a worker may be ahead of the slowest; None: any number."""

    @property
    def staleness_aware(self) -> bool:
        """Whether a late push gets a smaller rate."""

    @property
    def layerwise(self) -> bool:
        """Whether a layer's gradient is pushed as soon as the backward pass has it."""

    def examples_per_update(self, batch_size: int, workers: int) -> int:
        """Return how many examples stand behind one update."""


@dataclass(frozen=True)
class ResumePoint:
    """What a process resumes from when its loop starts again.

    Attributes:
        numbers: A master's counts, or the versions of w[m] that a worker's copy has seen.
        bodies: The pushes that a master's part of a checkpoint has logged.
        spans: Each master's span of the vector, where some have taken over others'.
    """

    numbers: Mapping[str, Any]
    bodies: Sequence[Tensor] = ()
    spans: Sequence[Span] | None = None
