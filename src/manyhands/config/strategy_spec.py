"""What validation reads of a strategy: facts as data, and pure functions of the options.

The training loop of a strategy is in `manyhands.strategies.strategy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

# What other processes see of a worker's gradient: only the sum over all workers; the sum, once the
# masters have it; or every worker's own message.
Exposure = Literal["sum", "masters", "each"]

# Updates that a sum or an average of all workers corrects soon may be as long as those of a single
# worker. Where a worker trains alone for long, or its updates arrive late, they have to be the
# shorter the more workers there are, above all with momentum.
Scaling = Literal["none", "inverse"]


@dataclass(frozen=True, kw_only=True)
class Supports:
    """What a strategy can do; validation and the tests read it, the latter beside docs/tasks.md.

    The defaults describe most strategies, without any optional ability.

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
        resume: A run can resume from a checkpoint; where replicas are identical, with any number
            of workers.
        balance: The workers' parts of a batch may change from step to step without changing the
            update, since gradients are summed.
        torch: It runs over torch.distributed too: it needs no more than a `Communicator`.
        outlives: The surviving workers can continue when others die.
        cuda: Its workers may compute on GPUs: it touches vectors through torch and the group only.
        private: Other processes see no more of a gradient than `exposure` says.
        join: A user's own loop can drive it, step by step (`manyhands.join`).
        lacks: The features (`FEATURES` in `config.run`) that it cannot offer, each with the reason.
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


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one step of a strategy sends, on average; `manyhands predict` makes seconds of it.

    Attributes:
        allreduces: All-reduces of a vector as long as the parameters; 0.25 is one every four steps.
        neighbours: Workers to which each worker sends such a vector.
        every: Steps between two exchanges in which workers wait for each other.
    """

    allreduces: float = 0.0
    neighbours: float = 0.0
    every: int = 1


class StrategySpec:
    """What a configuration knows of its strategy; nothing here needs a worker.

    A subclass sets `name`, and `supports`: a class variable, or a property where the facts depend
    on its options.
    """

    name: ClassVar[str]

    @classmethod
    def check_definition(cls) -> None:
        """Refuse a class without what a strategy must have, by file and line."""

    @property
    def supports(self) -> Supports:
        """What the strategy can do with these options."""
        raise NotImplementedError(f"{type(self).__name__} has no supports")

    @property
    def exposure(self) -> Exposure:
        """What others see of a worker's gradient; decides who adds how much noise."""
        return "each"

    @property
    def lr_scaling(self) -> Scaling:
        """How SGD's default learning rate follows the number of workers."""
        return "none"

    def cost(self, workers: int) -> Cost | None:
        """Return what a step sends with so many workers; None: `manyhands predict` refuses it."""
        return None

    def validate(self, config: Any) -> None:
        """Refuse what cannot work with the run's other options (a `RunConfig`), before launch."""

    def on_gpu(self, config: Any) -> bool:
        """Say whether its workers may compute on GPUs in this run (a `RunConfig`)."""
        return self.supports.cuda

    def check_model(self, *, layers: Sequence[str]) -> None:
        """Refuse a model that cannot be trained this way; `layers` names those with parameters."""

    def check_module(self, module: nn.Module) -> None:
        """Refuse a user's module that cannot be trained this way, before workers are started."""

    def check_data(self, features: object, targets: object) -> None:
        """Refuse batches of several tensors where the strategy takes one.

        Args:
            features: The form of a batch's features; None for one tensor.
            targets: Likewise of its targets.
        """
        several = features is not None or targets is not None
        if several and "tensors" in self.supports.lacks:
            raise ConfigError(
                f"a batch has several tensors, but {self.name} {self.supports.lacks['tensors']}; "
                "put them into one, or use another strategy"
            )

    def check_join(self) -> None:
        """Refuse options with which a user's own loop cannot drive it."""

    def warning(self, hosts: Sequence[str]) -> str:
        """Return a warning of these options where worker k runs on `hosts[k]`; "" without one."""
        return ""

    def processes(self, workers: int) -> int:
        """Return how many processes take part: by rank, the workers first, then what is beside."""
        return workers

    def follows(self, rank: int, workers: int) -> int:
        """Return the worker whose batches process `rank` sees; a master sees none of them."""
        return rank if rank < workers else 0

    def examples_per_update(self, batch_size: int, workers: int) -> int:
        """Return how many examples stand behind one update."""
        return batch_size

    def count_parts(self) -> int:
        """Return into how many parts a worker's batch is split; the loss is the mean of theirs."""
        return 1

    def at_once(self, examples: int) -> int:
        """Return how many of a worker's batch of so many examples go through the model at once."""
        return examples
