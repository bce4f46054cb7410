"""The work object that every operation returns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch import Tensor

Ready: TypeAlias = Callable[[], bool]
Steps: TypeAlias = Iterator[Ready]

_no_wait: Ready = lambda: True  # noqa: E731


class Driver(Protocol):
    """What drives operations."""

    def wait(self, work: MPIWork, seconds: float | None) -> bool:
        """Drive until the operation has finished; return whether it has, in so many seconds."""


class Lane(deque["MPIWork"]):
    """The collectives of one group, in order; the first is under way."""


class MPIWork(dist.Work):
    """One operation: its steps, its progress, and its waiters.

    Args:
        engine: What drives it.
        steps: The operation; yields what tells whether it may go on.
        outputs: The tensors it fills, as `result()` and the future give them.
        lane: The group's collectives; None for a message.
        nbytes: How much this rank brings.
        eager: Whether it is likely that the others take part at once.
        waited: Whether the caller will wait for it at once.
        timeout: How long `wait` waits unless told.
    """

    def __init__(
        self,
        engine: Driver,
        steps: Steps,
        outputs: Any,
        *,
        lane: Lane | None,
        nbytes: int,
        eager: bool,
        waited: bool,
        timeout: timedelta,
    ) -> None:
        super().__init__()
        self.lane, self.nbytes, self.eager, self.waited = lane, nbytes, eager, waited
        self.status: MPI.Status | None = None  # of a message received
        self.finished = False
        self._engine, self._steps, self._outputs = engine, steps, outputs
        self._timeout = timeout
        self._ready = _no_wait
        self._error: BaseException | None = None
        self._future: Any = None
        self._published = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Do the first step."""
        self.advance()

    def advance(self) -> bool:
        """Advance if possible; return whether it did and is unfinished. Holding the lock."""
        if self.finished:
            return False
        try:
            if not self._ready():
                return False
            self._ready = next(self._steps)
            return True
        except StopIteration:
            pass
        except BaseException as error:  # it is the waiter's, whoever drives
            self._error = error
        self._steps, self._ready = iter(()), _no_wait
        self.finished = True
        return False

    @property
    def followed(self) -> bool:
        """Whether a future of it exists."""
        return self._future is not None

    def publish(self) -> None:
        """Complete the future, outside the engine's lock: its callbacks run here."""
        with self._lock:
            if self._future is None or self._published:
                return
            self._published = True
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the operation has finished.

        Raises:
            RuntimeError: It failed, or took longer than `timeout`, by default the group's.
        """
        if not self.finished:
            limit = timeout if timeout and timeout.total_seconds() > 0 else self._timeout
            if not self._engine.wait(self, limit.total_seconds()):
                raise RuntimeError(
                    f"an operation reached the timeout of {limit.total_seconds():g} s: another "
                    "rank has not taken part, or does so in another order"
                )
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return whether the operation has finished or failed."""
        return self.finished

    def is_success(self) -> bool:
        """Return whether it finished without an error."""
        return self.finished and self._error is None

    def exception(self) -> BaseException | None:
        """Return why it failed; None if it did not."""
        return self._error

    def synchronize(self) -> None:
        """Return when the operation has finished, as `wait` does."""
        self.wait()

    def result(self) -> Any:
        """Return the tensors that were filled."""
        return self._outputs

    def source_rank(self) -> int:
        """Return the sender of a received message; -1 if there is none."""
        return -1 if self.status is None else self.status.source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return a future of the tensors that are filled."""
        with self._lock:
            if self._future is None:
                devices = {part.device for part in _flat(self._outputs) if part.is_cuda}
                self._future = torch.futures.Future(devices=list(devices))
        if self.finished:
            self.publish()
        return self._future  # type: ignore[no-any-return]


def _flat(outputs: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested lists."""
    if isinstance(outputs, list | tuple):
        for part in outputs:
            yield from _flat(part)
    elif isinstance(outputs, torch.Tensor):
        yield outputs
