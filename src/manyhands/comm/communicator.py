"""The interface of a group of workers for strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from manyhands.comm.meter import Meter

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Pending(Protocol):
    """A collective result that is still in progress."""

    def progress(self) -> None:
        """Make progress: MPI does so only when it is called."""

    def result(self) -> np.ndarray:
        """Return the numbers once all workers have contributed."""


@dataclass(frozen=True)
class Ready:
    """A collective result that is complete."""

    values: np.ndarray

    def progress(self) -> None:
        """Do nothing."""

    def result(self) -> np.ndarray:
        """Return the numbers."""
        return self.values


class Exchange(Protocol):
    """Messages that are under way; a call waits until all of them have arrived."""

    def __call__(self) -> None:
        """Wait until all messages have arrived, and count them."""

    def arrived(self) -> bool:
        """Return whether all have arrived, without waiting; makes progress."""


class Arrived:
    """Messages of which there are none."""

    def __call__(self) -> None:
        """Do nothing."""

    def arrived(self) -> bool:
        """Return True."""
        return True


class Communicator(Protocol):
    """A group of workers.

    All methods are collective but `exchange`, `exchange_parts`, `progress`, `lost` and `abort`.
    `name` says what carries the messages, as the option `comm` does.
    """

    name: str
    rank: int
    size: int
    meter: Meter

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the group, in place; the same bits on every worker."""

    def broadcast(self, vector: Tensor, root: int = 0) -> None:
        """Give all workers root's `vector`, in place."""

    def exchange(self, vector: Tensor, received: Mapping[int, Tensor]) -> Callable[[], None]:
        """Begin to send `vector` to the workers in `received` and to receive theirs into it.

        They must do the same. Returns what ends the exchange; until it is called `vector` may be
        read but not written, and `received` neither.
        """

    def exchange_parts(
        self, parts: Mapping[int, Tensor], received: Mapping[int, Tensor], tag: int = 0
    ) -> Exchange:
        """Begin to send each worker its part, and to receive others' parts; all in host memory.

        A part may be longer or shorter than what is received for it. Returns what ends the
        exchange, as `exchange` does. Exchanges of one tag are matched in the order in which they
        begin; those of two tags may begin in another order on every worker.
        """

    def progress(self) -> None:
        """Make progress on exchanges that have begun: MPI does so only when it is called."""

    def split(self, colour: int) -> Communicator:
        """Return the group of the workers with the same colour, by rank; over MPI only.

        It counts on the same meter, and lasts until the run ends.
        """

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a few numbers over the group, off the meter."""

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the element-wise maximum over the group, off the meter."""

    def begin_maximum(self, values: np.ndarray) -> Pending:
        """Begin a `maximum`, in the background where the group can."""

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's JSON-compatible `value` on all of them, by rank."""

    def barrier(self) -> None:
        """Wait for all workers."""

    def lost(self, error: BaseException) -> bool:
        """Return whether `error` only tells that another worker is gone."""

    def release(self) -> None:
        """Free what was made for one run; the group itself stays. Collective."""

    def abort(self, code: int) -> None:
        """Flush the output, then end this process and the group with that exit code."""
