"""The interface of a compressor: an all-reduce that sends less, and what it keeps between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm.communicator import Communicator


class Compressor(Protocol):
    """Sums vectors over a group, approximately.

    Guarantees of every compressor:
        - All workers get the same bits.
        - With one worker nothing is sent, so nothing is compressed: the vector stays as it is.
        - The same vectors, step and state give the same bits.
        - If `allreduce` fails because a worker is gone, the vector is as before, and the same step
          can be done again with the others.
    """

    name: str

    def allreduce(self, vector: Tensor, comm: Communicator, step: int = 0) -> None:
        """Sum `vector` over the group, in place. Collective.

        Steps may not decrease. A step that is repeated begins with the state that it had.
        """

    def state(self, step: int) -> dict[str, Tensor]:
        """Return what is kept for `step`, the next one."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `state` returned; what is missing begins anew."""
