"""What every strategy is: a frozen dataclass of its options, its loop, and its facts as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from manyhands.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor, nn
    from torch.optim import Optimizer
    from typing_extensions import Self

    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig
    from manyhands.data.batch_tree import Form, Tree
    from manyhands.model.replica import Replica
    from manyhands.worker.worker import Worker


# What a run may ask of any strategy: options that change how a gradient is computed and used, and
# the forms that losses and batches may have.
FEATURES = {
    "model_loss": "a loss of (model, batch)",
    "tensors": "batches of several tensors",
    "metric": "metrics by name or as functions",
    "clip_norm": "gradients cut to a length",
    "accumulate": "a batch computed in pieces",
    "schedule": "a learning rate that changes",
    "no_decay": "weight decay by parameter name",
    "autocast": "computing in bfloat16",
    "sync_batchnorm": "BatchNorm by the statistics of the whole batch",
    "augment": "batches that a function changes",
    "validation": "a part of the training set kept aside, by which the best model is known",
    "init": "starting from given weights",
    "callbacks": "objects that hear of each step and epoch",
}

# What anybody but the worker itself sees of a gradient: only the sum over all workers; the sum,
# once the masters have it; or every worker's own message.
Exposure = Literal["sum", "masters", "each"]

# Where a worker's updates are corrected soon, by a sum or an average of all, they may be as long as
# one's alone. Where it goes its own way for long, or its updates come late, they have to be the
# shorter the more workers there are, above all with momentum.
Scaling = Literal["none", "inverse"]


@dataclass(frozen=True, kw_only=True)
class Supports:
    """What a strategy can do; validation and the tests read it, the latter beside docs/tasks.md.

    What most strategies are is the default, and so is that they can do nothing out of the ordinary.

    Attributes:
        many: More than one worker.
        whole_batches: `batch_size` is one worker's push, not split over the workers.
        together: Workers step together, so evaluation can be shared out between two steps.
        equals_one: Several processes end where one worker ends, up to rounding; a model for which
            that fails is warned of.
        identical: All replicas hold the same parameters after every step (hashed every epoch).
        partition: The partition used where the user names none.
        deterministic: The same seed gives the same result, bit for bit.
        shares_memory: Workers share one host's memory, and no MPI.
        workers: How many workers there are where the user does not say.
        beside: What processes are that the strategy adds to its workers.
        resume: A run can go on from a checkpoint; where replicas are identical, with any number
            of workers.
        balance: The workers' parts of a batch may change from step to step without changing the
            update, since gradients are summed.
        torch: It runs over torch.distributed too: it needs no more than a `Communicator`.
        outlives: The workers that are left can go on when others die.
        cuda: Its workers may compute on GPUs: it touches vectors through torch and the group only.
        private: Whoever sees what others send sees no more than `exposure` says.
        join: A user's own loop can drive it, step by step (`manyhands.join`).
        lacks: What it cannot do of that which a run may ask of any strategy (`FEATURES`), each with
            the reason.
    """

    many: bool = True
    whole_batches: bool = False
    together: bool = True
    equals_one: bool = False
    identical: bool = False
    partition: str = "balanced"
    deterministic: bool = True
    shares_memory: bool = False
    resume: bool = False
    balance: bool = False
    torch: bool = False
    outlives: bool = False
    cuda: bool = False
    private: bool = False
    join: bool = False
    workers: int = 2
    beside: str = "master"
    lacks: Mapping[str, str] = field(default_factory=dict)


class Part(Protocol):
    """How much one worker's part of an update counts; see `manyhands.worker.worker.Batch`."""

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


class Hand(Protocol):
    """What a step needs of a worker, whether the loop is a run's or a user's own."""

    config: RunConfig
    comm: Communicator
    optimizer: Optimizer
    facts: dict[str, Any]
    state: Any
    step: int

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


class Strategy(Protocol):
    """A way of parallelising SGD."""

    name: ClassVar[str]
    supports: ClassVar[Supports]

    @property
    def exposure(self) -> Exposure:
        """What others see of a worker's gradient; decides who adds how much noise."""
        return "each"

    @property
    def lr_scaling(self) -> Scaling:
        """How SGD's default learning rate follows the workers."""
        return "none"

    def validate(self, config: RunConfig) -> None:
        """Refuse what cannot work with the run's other options, before anything is started."""

    def on_gpu(self, config: RunConfig) -> bool:
        """Say whether its workers may compute on GPUs in this run."""
        return self.supports.cuda

    def check_model(self, *, layers: Sequence[str]) -> None:
        """Refuse a model that cannot be trained this way; `layers` names those with parameters."""

    def check_module(self, module: nn.Module) -> None:
        """Refuse a user's module that cannot be trained this way, before workers are started."""

    def check_data(self, features: Form, targets: Form) -> None:
        """Refuse batches of several tensors where one is all that can be taken."""
        several = features is not None or targets is not None
        if several and "tensors" in self.supports.lacks:
            raise ConfigError(
                f"a batch has several tensors, but {self.name} {self.supports.lacks['tensors']}; "
                "put them into one, or use another strategy"
            )

    def processes(self, workers: int) -> int:
        """Return how many processes take part: by rank, the workers first, then what is beside."""
        return workers

    def examples_per_update(self, batch_size: int, workers: int) -> int:
        """Return how many examples stand behind one update."""
        return batch_size

    def at_once(self, examples: int) -> int:
        """Return how many of a worker's batch of so many examples go through the model at once."""
        return examples

    def prepare(self, worker: Worker) -> None:
        """Arrange a worker that was just built, before it is put where its checkpoint was."""

    def pause(self, worker: Worker) -> None:
        """Take part in a checkpoint if one is due; asked between two steps of a worker.

        Only where workers do not step together: nobody else is there to agree on it.
        """

    def follows(self, rank: int, workers: int) -> int:
        """Return the worker whose batches process `rank` sees; a master sees none of them."""
        return rank if rank < workers else 0

    def part(
        self, whole: Replica, batch: tuple[Tree, Tree], group: Communicator, workers: int
    ) -> Replica:
        """Return what this process trains: the whole model, or a part of it. Collective."""
        return whole

    def settled(self, replica: Replica) -> dict[str, Any]:
        """Return the options, as values, that the run found out for itself and goes on with."""
        return {}

    def state(self, worker: Worker) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Return what a checkpoint needs beside parameters and optimizer: tensors and numbers.

        Asked before those are copied. Collective where workers step together.
        """
        return {}, {}

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Take back what `state` gave."""

    def regroup(self, worker: Worker) -> None:
        """Bring those who are left together, after workers have died. Collective.

        Not asked where replicas are identical: there whoever is behind takes over another's.
        """

    def tally(self, worker: Worker) -> Any:
        """Return what this process knows of the pushes so far, where workers are apart."""
        return None

    def pushes(self, before: Sequence[int], told: Sequence[Any]) -> dict[int, int]:
        """Return how many pushes of each worker count, by number, the dead included.

        Args:
            before: The numbers of the workers that were there before, by rank.
            told: From everyone who is left: number, epoch, and what `tally` gave.
        """
        return {}

    def rescue(
        self, worker: Worker, before: Sequence[int], told: Sequence[Any]
    ) -> Callable[[], list[dict[str, Any]]]:
        """Find what processes beside the workers held that are dead now. Collective.

        Args:
            worker: One of those who are left.
            before: The numbers of all that were beside the workers, by rank.
            told: As for `pushes`.

        Returns:
            What lets others hold it, and says who; it is called when all are known to be alive.

        Raises:
            WorkerError: If it is gone for good.
        """
        raise WorkerError(f"{self.name} cannot go on without what stood beside its workers")

    def recount(self, worker: Worker, pushes: Sequence[int]) -> None:
        """Go on with so many pushes of each worker that is left, by rank."""

    def progress(self, worker: Worker) -> tuple[int, float] | None:
        """Return what is behind worker 0's copy: steps per worker, and the examples of all.

        Asked of worker 0 alone, where workers do not step together. None: its own steps count,
        since the copy is a replica of its own.
        """
        return None

    def run(self, worker: Worker) -> None:
        """Train: loop over `worker.batches()`, exchange, update."""

    def check_join(self) -> None:
        """Refuse options with which a user's own loop cannot drive it."""

    def begin(self, worker: Hand) -> None:
        """Get ready for the first step; a run that goes on has its state already."""

    def step(self, worker: Hand, batch: Part) -> None:
        """Do one update; only where `supports.join`."""

    def finish(self, worker: Hand) -> None:
        """Do what follows the last step. Collective."""

    def consensus(self, worker: Worker) -> Tensor:
        """Return the parameters to judge and to save; shape (dim,).

        Where workers step together: collective, and the same on every worker. Elsewhere it is asked
        of worker 0 alone, while the others go on.
        """
