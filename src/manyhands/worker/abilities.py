"""What a strategy may do beyond training: mixins that it inherits where they apply.

The code that needs an ability asks for it by `isinstance`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.errors import WorkerError

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm import Communicator
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica
    from manyhands.worker.worker import Worker


class Checkpointable:
    """A strategy with state of its own, beside parameters and optimizer, for a checkpoint."""

    def state(self, worker: Worker) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Return that state: tensors and numbers.

        Called before parameters and optimizer are copied. Collective where workers step together.
        """
        return {}, {}

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Take back what `state` returned."""


class Asynchronous(Checkpointable):
    """A strategy whose workers do not step together, and so agree on checkpoints in its own way."""

    def pause(self, worker: Worker) -> None:
        """Take part in a checkpoint if one is due; called between two steps of a worker."""

    def progress(self, worker: Worker) -> tuple[int, float] | None:
        """Return what is behind worker 0's copy: steps per worker, and the examples of all.

        Called on worker 0 alone. None: its own steps count, since the copy is its own replica.
        """
        return None


class Regroupable:
    """A strategy whose workers step together with different models, and continue without some."""

    def regroup(self, worker: Worker) -> None:
        """Give the surviving workers one model, after others have died. Collective."""


class Recoverable:
    """A strategy whose workers push at their own pace, and continue without some."""

    name: ClassVar[str]

    def tally(self, worker: Worker) -> Any:
        """Return what this process knows of the pushes so far."""
        return None

    def pushes(self, before: Sequence[int], reports: Sequence[Any]) -> dict[int, int]:
        """Return how many pushes of each worker count, by number, the dead included.

        Args:
            before: The numbers of the workers that were there before, by rank.
            reports: From every survivor: number, epoch, and what `tally` returned.
        """
        raise NotImplementedError

    def rescue(
        self, worker: Worker, before: Sequence[int], reports: Sequence[Any]
    ) -> Callable[[], list[dict[str, Any]]]:
        """Find what dead processes beside the workers held. Collective.

        Args:
            worker: One of the survivors.
            before: The numbers of all that were beside the workers, by rank.
            reports: As for `pushes`.

        Returns:
            What hands it to others, and says to which; called when all are known to be alive.

        Raises:
            WorkerError: If it is lost for good.
        """
        raise WorkerError(f"{self.name} cannot go on without what stood beside its workers")

    def recount(self, worker: Worker, pushes: Sequence[int]) -> None:
        """Continue with so many pushes of each surviving worker, by rank."""


class SplitsModel:
    """A strategy in which a process trains a part of the model."""

    def part(
        self, whole: Replica, batch: tuple[Tree, Tree], group: Communicator, workers: int
    ) -> Replica:
        """Return what this process trains. Collective."""
        raise NotImplementedError

    def settled(self, replica: Replica) -> dict[str, Any]:
        """Return options that the run found out for itself, and keeps when it is resumed."""
        return {}
