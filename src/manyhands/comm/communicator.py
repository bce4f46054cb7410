"""What a strategy may ask of a group of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from manyhands.comm.meter import Meter

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Pending(Protocol):
    """Numbers of the whole group that are still under way."""

    def poke(self) -> None:
        """Let them come nearer: MPI does nothing unless it is called."""

    def result(self) -> np.ndarray:
        """Return them, as soon as everyone has given theirs."""


@dataclass(frozen=True)
class Ready:
    """Numbers that are there already."""

    values: np.ndarray

    def poke(self) -> None:
        """Do nothing."""

    def result(self) -> np.ndarray:
        """Return them."""
        return self.values


class Communicator(Protocol):
    """A group of workers; every method but `exchange`, `lost` and `abort` is collective.

    `name` says what carries the messages, as the option `comm` does.
    """

    name: str
    rank: int
    size: int
    meter: Meter

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the group, in place; the same bits on every worker."""

    def broadcast(self, vector: Tensor, root: int = 0) -> None:
        """Give everyone root's `vector`, in place."""

    def exchange(self, vector: Tensor, received: Mapping[int, Tensor]) -> Callable[[], None]:
        """Begin to send `vector` to the workers in `received` and to receive theirs into it.

        They must do the same. Returns what ends the exchange; until it is called `vector` may be
        read but not written, and `received` neither.
        """

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a few numbers over the group, off the meter."""

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum over the group, off the meter."""

    def begin_maximum(self, values: np.ndarray) -> Pending:
        """Begin a `maximum`, where the group can do that and go on meanwhile."""

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's `value` (anything JSON can hold) on all of them, by rank."""

    def barrier(self) -> None:
        """Wait for everyone."""

    def lost(self, error: BaseException) -> bool:
        """Say whether `error` only tells that another worker is gone."""

    def release(self) -> None:
        """Let go of what was made for one run; the group itself stays. Collective."""

    def abort(self, code: int) -> None:
        """End this process with that exit code and with it the group; its output is passed on."""
