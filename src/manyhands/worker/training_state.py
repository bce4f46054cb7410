"""The position of one worker in the run, and its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any

from manyhands.worker.clock import Epoch, Moment
from manyhands.worker.disk_backed_columns import Column, StepFile
from manyhands.worker.past_epochs_file import EpochFile
from manyhands.worker.stopping import REACHED

if TYPE_CHECKING:
    from torch import Tensor

MOST_MOMENTS = 1000  # evaluations within epochs that a run remembers …
MOST_COPIES = 32  # … and copies of the parameters, which are large
BYTES_OF_COPIES = 256 * 2**20  # … of the ends of epochs more, where they fit into this


@dataclass
class TrainingState:
    """The position of one worker in the run, and its history.

    Attributes:
        step: The steps done so far, also those before the run was resumed.
        stopped: Why the run ends; "epochs" while nothing else ends it.
        epochs: What the worker saw in each epoch, and how the model did after it.
        losses: The loss of each step; None where it is unknown.
        history: The file that holds the losses and the clock's times.
        epoch_file: The file that holds the first epochs of a long run, for its checkpoints.
        kept: Worker 0's copies of the parameters, by epoch, to be evaluated later.
        moments: How the model did within epochs.
        copies: Worker 0's copies of the parameters at these moments, where they are to be
            evaluated later; otherwise none.
        stride: Of the moments that `--evaluate-every` names, one of so many is used.
        evaluated: The training seconds at the last moment, where seconds decide.
        seen: What was seen of the epoch when the current step began.
        others_saw: Workers that are gone have seen some of the examples that count.
        story: Which workers the group has lost, one event for each time.
    """

    step: int = 0
    stopped: str = "epochs"
    epochs: list[Epoch] = field(default_factory=list)
    losses: Column = field(default_factory=Column)
    history: StepFile = field(default_factory=StepFile)
    epoch_file: EpochFile = field(default_factory=EpochFile)
    kept: list[Tensor | None] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    copies: list[Tensor] = field(default_factory=list)
    stride: int = 1
    evaluated: float = 0.0
    seen: list[float | None] = field(default_factory=list)
    others_saw: bool = False
    story: list[dict[str, Any]] = field(default_factory=list)

    def add(self, moment: Moment, copy: Tensor | None = None) -> None:
        """Add a moment; where they become too many, every second is left out from there on."""
        self.moments.append(moment)
        if copy is not None:
            self.copies.append(copy)
        if len(self.moments) < (MOST_COPIES if self.copies else MOST_MOMENTS):
            return
        self.stride *= 2
        stays = [each.number % self.stride == 0 for each in self.moments]
        self.moments = list(compress(self.moments, stays))
        self.copies = list(compress(self.copies, stays))

    def keep(self, epoch: int, copy: Tensor | None) -> None:
        """Keep the copy of an epoch's end; where they take too much memory, drop one.

        It is the one whose neighbours are nearest to each other: those that stay lie about evenly.
        The first and the last stay.
        """
        self.kept[epoch - 1 :] = [None] * (epoch - 1 - len(self.kept)) + [copy]
        held = [i for i, each in enumerate(self.kept) if each is not None]
        most = max(MOST_COPIES, BYTES_OF_COPIES // copy.nbytes) if copy is not None else len(held)
        if len(held) > most:
            apart = [held[i + 1] - held[i - 1] for i in range(1, len(held) - 1)]
            self.kept[held[1 + apart.index(min(apart))]] = None

    @property
    def early(self) -> bool:
        """Whether worker 0 ends the run early, for all workers."""
        return self.stopped in (*REACHED, "patience", "callback")

    @property
    def epoch_start(self) -> int:
        """The steps of the run before the current epoch."""
        return self.step - self.epochs[-1].steps
