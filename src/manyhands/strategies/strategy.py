"""The base of every strategy: a frozen dataclass of its options, and its training loop.

A strategy's author writes `step` and `consensus`, or `run` where one step after the other is not
enough. What validation reads (`name`, `supports`, checks) is in `StrategySpec`; state in
checkpoints, recovery from failures and split models are mixins in `manyhands.worker.abilities`.
Strategies of manyhands and of users have the same base, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from manyhands.config.strategy_spec import Exposure, Scaling, StrategySpec, Supports
from manyhands.config.user_file import source_location
from manyhands.errors import WorkerError
from manyhands.strategies.required_methods import check_methods
from manyhands.worker.abilities import Checkpointable, Regroupable, SplitsModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.optim import Optimizer
    from typing_extensions import Self

    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig
    from manyhands.model.replica import Replica
    from manyhands.worker.worker import Worker

__all__ = [
    "BatchShare",
    "Exposure",
    "Scaling",
    "Strategy",
    "Supports",
    "WorkerView",
    "consensus_of",
    "strategy_of",
]


class BatchShare(Protocol):
    """One worker's share of an update, and how much it counts.

    Its examples, `x` and `y`, are there in a run only (`manyhands.worker.worker.Batch`).
    """

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

    def alone(self) -> Self:
        """Return the same examples with weight 1: their gradient is that of their mean loss."""


class WorkerView(Protocol):
    """What a step needs of a worker, whether the loop is a run's or a user's own.

    Attributes:
        config: The run's options: `config.workers`, `config.seed` and so on.
        comm: The group of workers: `size`, `allreduce`, `broadcast`, `exchange`, `split`,
            `sum`, `gather`.
        optimizer: The torch optimizer that `update` steps with.
        facts: What the strategy writes into the run's record, as JSON can hold it.
        state: What the strategy keeps from step to step; None when a run begins.
    """

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
        """The parameters, live: change them in place; shape (dim,)."""

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return each parameter's part of a vector such as `params`, by name, in its shape."""

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""

    def gradient(self, batch: Any) -> Tensor:
        """Return the gradient of the batch's mean loss, times the batch's weight.

        The sum over all workers is the gradient of the whole batch. The vector is the worker's own
        memory: the next call overwrites it. Shape (dim,); in your own loop (`manyhands.join`) a few
        more numbers follow.
        """

    def watch_backward(self, ready: Callable[[int], None]) -> Tensor:
        """Let `gradient` call `ready` during backward; return the vector that it fills.

        `ready` gets the number of each parameter in `replica.named` once that one's gradient, times
        the weight, is in its place. It may never be called: after `gradient` all are there.
        """

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the workers, in place."""

    def exchanging(self) -> AbstractContextManager[None]:
        """Count what happens inside as exchange."""

    def update(self, gradient: Tensor) -> None:
        """Let the optimizer step along `gradient`."""


class Strategy(StrategySpec):
    """A way of parallelising SGD: subclass it as a frozen dataclass of options.

    A subclass has `step` (or `run`) and `consensus`. Its fields are options: keyword arguments,
    flags and keys of experiment files. The page "Your own strategy" has an example.

    Attributes:
        name: What it is called in commands, records and reports; by default the class's name.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @property
    def supports(self) -> Supports:
        """What the strategy can do; by default what its base classes and its methods say.

        `Checkpointable` makes runs resumable, `Regroupable` lets them continue without dead
        workers, and without a `run` of its own a strategy works in `manyhands.join`.
        """
        return Supports(
            resume=isinstance(self, Checkpointable),
            outlives=isinstance(self, Regroupable),
            torch=True,
            cuda=True,
            join=type(self).run is Strategy.run,
        )

    @classmethod
    def check_definition(cls) -> None:
        """Refuse a class without what a strategy must have, by file and line."""
        check_methods(cls, Strategy)

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


def consensus_of(worker: Any) -> Tensor:
    """Return the parameters to evaluate and to save. Collective as the strategy's `consensus` is.

    Raises:
        WorkerError: If the strategy returns something else, or changed the size of the parameters.
    """
    strategy = strategy_of(worker.config)
    params = strategy.consensus(worker)
    if isinstance(strategy, SplitsModel):
        return params  # of the whole model, or of this process's part
    expected = tuple(worker.replica.grad.shape)
    for what, vector in (("worker.params is now", worker.params), ("consensus returned", params)):
        shape = getattr(vector, "shape", None)
        if shape is None or tuple(shape) != expected:
            is_now = type(vector).__name__ if shape is None else f"of shape {tuple(shape)}"
            raise WorkerError(
                f"strategy {strategy.name} ({source_location(type(strategy).consensus)}): {what} "
                f"{is_now}; expected a tensor of shape {expected}, the model's parameters"
            )
    return params
