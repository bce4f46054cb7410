"""Plain SGD in one process: what every speed-up is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.strategies.strategy import Exposure, Strategy, Supports

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.strategies.strategy import BatchShare, WorkerView


@dataclass(frozen=True)
class Sequential(Strategy):
    """Mini-batch stochastic gradient descent (Robbins & Monro 1951), one worker.

    ```
    for each batch B:   w ← w − η ∇f_B(w)
    ```

    w: parameters; B: the batch; f_B: its mean loss; η: learning rate (the optimizer's update).

    Guarantees: the same seed gives the same weights, bit for bit, on one machine.
    Cost per step: no messages.
    """

    name: ClassVar[str] = "sequential"
    supports: ClassVar[Supports] = Supports(
        many=False,
        identical=True,
        resume=True,
        torch=True,
        cuda=True,
        private=True,
        join=True,
        workers=1,
    )

    @property
    def exposure(self) -> Exposure:
        """Others see the sum only."""
        return "sum"

    def step(self, worker: WorkerView, batch: BatchShare) -> None:
        """Do one update."""
        worker.update(worker.gradient(batch))

    def consensus(self, worker: WorkerView) -> Tensor:
        """Return the only replica's parameters."""
        return worker.params
