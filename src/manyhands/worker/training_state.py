"""The position of one worker in the run, and its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from manyhands.worker.clock import Epoch
from manyhands.worker.columns import Column, StepFile
from manyhands.worker.stopping import REACHED

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class TrainingState:
    """The position of one worker in the run, and its history.

    Attributes:
        step: The steps done so far, also those before the run was resumed.
        stopped: Why the run ends; "epochs" while nothing else ends it.
        epochs: What the worker saw in each epoch, and how the model did after it.
        losses: The loss of each step; None where it is unknown.
        history: The file that holds the losses and the clock's times.
        kept: Worker 0's copies of the parameters, by epoch, to be evaluated later.
        seen: What was seen of the epoch when the current step began.
        others_saw: Workers that are gone have seen some of the examples that count.
        story: Which workers the group has lost, one event for each time.
    """

    step: int = 0
    stopped: str = "epochs"
    epochs: list[Epoch] = field(default_factory=list)
    losses: Column = field(default_factory=Column)
    history: StepFile = field(default_factory=StepFile)
    kept: list[Tensor | None] = field(default_factory=list)
    seen: list[float | None] = field(default_factory=list)
    others_saw: bool = False
    story: list[dict[str, Any]] = field(default_factory=list)

    @property
    def early(self) -> bool:
        """Whether the run ends because of how the model does."""
        return self.stopped in (*REACHED, "patience")

    @property
    def epoch_start(self) -> int:
        """The steps of the run before the current epoch."""
        return self.step - self.epochs[-1].steps
