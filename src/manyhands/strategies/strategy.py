"""The base of every strategy: a frozen dataclass of its options, and its training loop.

A strategy's author writes `step` and `consensus`, or `run` where one step after the other is not
enough. What validation reads (`name`, `supports`, checks) is in `StrategySpec`; state in
checkpoints, recovery from failures and split models are mixins in `manyhands.worker.abilities`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from manyhands.config.strategy_spec import Exposure, Scaling, StrategySpec, Supports

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.optim import Optimizer
    from typing_extensions import Self

    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig
    from manyhands.model.replica import Replica
    from manyhands.worker.worker import Worker

__all__ = ["BatchShare", "Exposure", "Scaling", "Strategy", "Supports", "WorkerView", "strategy_of"]


class BatchShare(Protocol):
    """How much one worker's share of an update counts; see `manyhands.worker.worker.Batch`."""

    @property
    def weight(self) -> float:
        """Its share of the update's examples."""

    @property
    def total(self) -> float:
        """The examples behind the whole update, over all workers."""

    @property
    def examples(self) -> float:
        """How many of them are this worker's."""

    def _replace(self, *, weight: float) -> Self: ...


class WorkerView(Protocol):
    """What a step needs of a worker, whether the loop is a run's or a user's own."""

    config: RunConfig
    comm: Communicator
    replica: Replica
    optimizer: Optimizer
    facts: dict[str, Any]
    state: Any

    @property
    def step(self) -> int:
        """How many steps this worker has done."""

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""

    @property
    def params(self) -> Tensor:
        """The parameters, live; shape (dim,)."""

    def gradient(self, batch: Any) -> Tensor:
        """Return the gradient of the batch's mean loss, times the batch's weight."""

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the workers, in place."""

    def exchanging(self) -> AbstractContextManager[None]:
        """Count what happens inside as exchange."""

    def update(self, gradient: Tensor) -> None:
        """Let the optimizer step along `gradient`."""


class Strategy(StrategySpec):
    """A way of parallelising SGD."""

    def prepare(self, worker: Worker) -> None:
        """Set up a worker that was just built, before it is restored from its checkpoint."""

    def run(self, worker: Worker) -> None:
        """Train: loop over `worker.batches()`, exchange, update."""
        self.begin(worker)
        for batch in worker.batches():
            self.step(worker, batch)
        self.finish(worker)

    def begin(self, worker: WorkerView) -> None:
        """Prepare the first step; a resumed run has its state already."""

    def step(self, worker: WorkerView, batch: BatchShare) -> None:
        """Do one update."""
        raise NotImplementedError(f"{self.name} has neither step nor run")

    def finish(self, worker: WorkerView) -> None:
        """Do what follows the last step. Collective."""

    def consensus(self, worker: Any) -> Tensor:
        """Return the parameters to evaluate and to save; shape (dim,).

        Where workers step together: collective, and the same on every worker. Elsewhere only worker
        0 calls it, while the others train on.
        """
        raise NotImplementedError(f"{self.name} has no consensus")


def strategy_of(config: RunConfig) -> Strategy:
    """Return the run's strategy, with its loop."""
    return cast("Strategy", config.strategy)
