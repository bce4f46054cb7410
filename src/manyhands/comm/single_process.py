"""The communicator of a single process: it sends nothing and loads nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from manyhands.comm.communicator import Arrived, Exchange, Ready
from manyhands.comm.meter import Meter

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class SingleProcess:
    """A `Communicator` of one worker."""

    def __init__(self) -> None:
        self.name = "alone"
        self.rank = 0
        self.size = 1
        self.meter = Meter()

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Leave `vector` as it is: the sum over one worker."""

    def broadcast(self, vector: Tensor, root: int = 0) -> None:
        """Leave `vector` as it is."""

    def exchange(self, vector: Tensor, received: Mapping[int, Tensor]) -> Callable[[], None]:
        """Do nothing."""
        return lambda: None

    def exchange_parts(
        self, parts: Mapping[int, Tensor], received: Mapping[int, Tensor], tag: int = 0
    ) -> Exchange:
        """Do nothing."""
        return Arrived()

    def progress(self) -> None:
        """Do nothing."""

    def split(self, colour: int) -> SingleProcess:
        """Return a group of this process alone."""
        part = SingleProcess()
        part.meter = self.meter
        return part

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return a copy of the values."""
        return values.copy()

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return a copy of the values."""
        return values.copy()

    def begin_maximum(self, values: np.ndarray) -> Ready:
        """Return a copy of the values."""
        return Ready(values.copy())

    def gather(self, value: Any) -> list[Any]:
        """Return the only worker's `value`."""
        return [value]

    def barrier(self) -> None:
        """Do nothing."""

    def lost(self, error: BaseException) -> bool:
        """Return False: there is no other worker."""
        return False

    def release(self) -> None:
        """Do nothing."""

    def abort(self, code: int) -> None:
        """End this process with that exit code."""
        raise SystemExit(code)
