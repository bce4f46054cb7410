"""How one worker computes and applies a gradient, where that is not the plain way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.config.parse import Slow
    from manyhands.data.worker_batch_plan import Shares
    from manyhands.model.early_gradients import EarlyGradients
    from manyhands.model.kernels.cuda_graphs import Graphs
    from manyhands.model.lr_schedule import Rate
    from manyhands.privacy.mechanism import Mechanism
    from manyhands.worker.augment import Augment


@dataclass(kw_only=True)
class Computation:
    """What changes a worker's batches, gradients and updates.

    Attributes:
        mechanism: A private run's: clips gradients and adds noise.
        graphs: On a GPU, a captured gradient and update.
        slow: How much slower this worker is made, for experiments.
        augment: Changes each batch.
        rate: Changes the learning rate over the run.
        planned: The steps of each worker, for the rate.
        parts: Returns the workers' parts of a batch at a step of the run, where they change.
        early: Moves gradients during backward, where the strategy watches it.
    """

    mechanism: Mechanism | None = None
    graphs: Graphs | None = None
    slow: Slow | None = None
    augment: Augment | None = None
    rate: Rate | None = None
    planned: list[int] = field(default_factory=list)
    parts: Callable[[int], Sequence[int]] | None = None
    early: EarlyGradients | None = None

    def shares(self, before: int) -> Shares | None:
        """Return the workers' parts at each step of an epoch; None where they are fixed.

        Args:
            before: The steps of the run before that epoch.
        """
        parts = self.parts
        return None if parts is None else lambda step: parts(before + step)
