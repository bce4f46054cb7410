"""Synchronous SGD: every worker a part of the batch, one all-reduce of the gradient per step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.strategies.strategy import Exposure, Strategy, Supports

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.strategies.strategy import Hand, Part
    from manyhands.worker import Worker

AllReduce = Literal[
    "auto",
    "mpi",
    "naive",
    "allgather",
    "ring",
    "recursive-doubling",
    "rabenseifner",
    "shared-memory",
    "hierarchical",
]


@dataclass(frozen=True)
class Sync(Strategy):
    """Synchronous data-parallel SGD (Chen et al. 2016, arXiv 1604.00981).

    ```
    each worker k, for each global batch B = B_1 ∪ … ∪ B_P:
        g_k ← (|B_k| / |B|) ∇f_{B_k}(w)
        g   ← Σ_k g_k                       (all-reduce)
        w   ← w − η g                       (the same on every worker)
    ```

    w: parameters; B_k: worker k's part of the batch; f: mean loss; η: learning rate; P: workers.

    Guarantees:
        - One worker equals `sequential`; P workers compute the same update up to rounding, for
          every P and batch size, since parts are weighted by their exact number of examples.
        - All replicas are bit-identical after every step; they are hashed each epoch.
    Cost per step: one all-reduce of dim numbers (see `manyhands.allreduce` for messages and bytes).
    """

    name: ClassVar[str] = "sync"
    supports: ClassVar[Supports] = Supports(
        identical=True,
        resume=True,
        balance=True,
        outlives=True,
        torch=True,
        cuda=True,
        private=True,
        join=True,
    )

    allreduce: AllReduce = field(
        default="auto", metadata={"help": "how gradients are summed; auto picks by size and group"}
    )

    @property
    def exposure(self) -> Exposure:
        """Others see the sum only."""
        return "sum"

    def run(self, worker: Worker) -> None:
        """Train: gradient of my part, sum over all, the same update everywhere."""
        for batch in worker.batches():
            self.step(worker, batch)

    def step(self, worker: Hand, batch: Part) -> None:
        """Do one update, the same on every worker."""
        gradient = worker.gradient(batch)
        worker.allreduce(gradient, self.allreduce)
        worker.update(gradient)

    def consensus(self, worker: Hand) -> Tensor:
        """Return this replica's parameters: all replicas hold the same."""
        return worker.params
