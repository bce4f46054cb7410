"""What a run is to reach, and which of its epochs is the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.worker.clock import Epoch, Moment

REACHED = ("target_accuracy", "target")  # why a run ended that is as good as was asked for


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What ends a run early.

    Attributes:
        metric: The name of what the target is for; None without metrics.
        higher: Whether more of it is better.
        chosen: The user asked for the metric: it decides which epoch is the best. Otherwise the
            validation loss does.
        target: Where to stop.
        reason: What a run that stops there says.
        patience: After how many epochs without a better one to stop.
    """

    metric: str | None = None
    higher: bool = True
    chosen: bool = False
    target: float | None = None
    reason: str = "target"
    patience: int | None = None

    @property
    def ends(self) -> bool:
        """Whether how the model does may end the run."""
        return self.target is not None or self.patience is not None

    def best(self, epochs: Sequence[Epoch]) -> Epoch | None:
        """Return the epoch that does best on what is kept aside, the first of equals."""
        known = [epoch for epoch in epochs if epoch.validation_loss is not None]
        return min(known, key=self._badness, default=None)

    def _badness(self, epoch: Epoch) -> float:
        if not self.chosen or self.metric is None:
            return epoch.validation_loss or 0.0
        value = epoch.validation_metrics.get(self.metric)
        if value is None:
            return math.inf
        return -value if self.higher else value

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Say whether these metrics are as good as the target."""
        if self.target is None or self.metric is None or self.metric not in metrics:
            return False
        value = metrics[self.metric]
        return value >= self.target if self.higher else value <= self.target

    def met(self, judged: Epoch | Moment) -> bool:
        """Say whether a model is as good as the target, on what is kept aside if there is that."""
        aside = judged.validation_loss is not None
        return self.reached(judged.validation_metrics if aside else judged.test_metrics)

    def over(self, epochs: Sequence[Epoch]) -> str | None:
        """Return why the run ends after the last of its epochs, if it does."""
        last, best = epochs[-1], self.best(epochs)
        if self.met(last):
            return self.reason
        if self.patience is not None and best and last.epoch - best.epoch >= self.patience:
            return "patience"
        return None
