"""What every compressor has: an all-reduce that sends less, and what it keeps between steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm.communicator import Communicator


class Compressor(ABC):
    """Sums vectors over a group, approximately.

    Guarantees of every compressor:
        - All workers get the same bits.
        - With one worker nothing is sent, so nothing is compressed: the vector stays as it is.
        - The same vectors, step and state give the same bits.
        - If `allreduce` fails because a worker is gone, the vector is as before, and the same step
          can be done again with the others.
    """

    name: str

    def allreduce(self, vector: Tensor, comm: Communicator, step: int) -> None:
        """Sum `vector` over the group, in place. Collective.

        Steps, from 0, may not decrease. A step that is repeated begins with the state that it had,
        and has the same random numbers.
        """
        if comm.size > 1:
            with comm.meter.as_one(f"allreduce {self.name}", vector.nbytes):
                self._sum(vector, comm, step)

    @abstractmethod
    def _sum(self, vector: Tensor, comm: Communicator, step: int) -> None:
        """Sum `vector` over a group of several workers, in place. Collective."""

    def state(self, step: int) -> dict[str, Tensor]:
        """Return what is kept for `step`, the next one."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 - most keep nothing
        """Take back what `state` returned; what is missing begins anew."""
