"""Turns a hang in a user's own loop into a report: which worker waits, which is missing.

Only waiting counts. Between two calls of `hands` a worker runs the user's own code, for as long as
it likes, until another worker has waited for it for longer than the timeout.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from manyhands.comm.communicator import Ready
from manyhands.comm.rendezvous import ask_leader, host_leader
from manyhands.launch.host_watchdog import TURN, HostWatchdog, dump_stack_on_signal
from manyhands.launch.scratch import make_folder, new_name, remove_abandoned
from manyhands.launch.shm_cleanup import CleanupProcess, hold_folder
from manyhands.launch.status_board import AFTER, BOARD_FILE, OWN, Board

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from manyhands.comm import Communicator
    from manyhands.comm.communicator import Exchange

P = ParamSpec("P")
R = TypeVar("R")


class WatchedComm:
    """A group that records when its workers wait, and a thread that checks for hangs.

    Collective: all processes of `group` make it, and each of them closes it.

    Args:
        group: The workers; this is a `Communicator` too, and does what that one does.
        timeout: Seconds of waiting before the hang is reported and all processes are ended.
    """

    def __init__(self, group: Communicator, timeout: float) -> None:
        self._group = group
        self.name, self.meter = group.name, group.meter
        self.rank, self.size = group.rank, group.size
        self.allreduce = self._watched(group.allreduce)
        self.broadcast = self._watched(group.broadcast)
        self.sum, self.maximum = self._watched(group.sum), self._watched(group.maximum)
        self.gather, self.barrier = self._watched(group.gather), self._watched(group.barrier)
        self.lost, self.release, self.abort = group.lost, group.release, group.abort
        self.progress, self.split = group.progress, group.split
        self._steps = 0
        self._watchdog: HostWatchdog | None = None
        free = signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
        if not all(group.gather(free and threading.current_thread() is threading.main_thread())):
            return  # the signal is the user's own
        leader = host_leader(group)
        self._cleanup: CleanupProcess | None = None
        self._folder = Path(ask_leader(group, lambda: str(self._make()), leader=leader))
        # It removes the folder once every process of the host has released it or ended.
        self._release_folder = (
            self._cleanup.release if self._cleanup else _hold_leader_folder(self._folder)
        )
        self._board = Board(self._folder / BOARD_FILE, group.size)
        self._board.enter(self.rank)
        self._log = (self._folder / f"rank-{self.rank}.log").open("w")
        # The process that reports a hang asks for our stack.
        self._restore_signal = dump_stack_on_signal(self._log)
        patience = timeout + (0.0 if self.rank == leader else TURN * self.rank)
        self._watchdog = HostWatchdog(self._folder, group.size, self._folder, patience)
        group.barrier()  # every log is there before the first may go
        self._board.note(self.rank, 0, OWN)
        self._watchdog.start()

    def _make(self) -> Path:
        """Make a folder with an empty board, and the process that removes it after a kill."""
        remove_abandoned()
        folder = new_name()
        self._cleanup = make_folder(folder)
        Board(folder / BOARD_FILE, self.size, create=True)
        return folder

    def close(self) -> None:
        """Stop watching; the host's last process removes the folder."""
        if self._watchdog is None:
            return
        self._board.note(self.rank, self._steps, AFTER)
        self._watchdog.stop()
        self._watchdog = None
        self._restore_signal()
        self._log.close()
        with suppress(OSError):
            (self._folder / f"rank-{self.rank}.log").unlink()
            if not any(self._folder.glob("rank-*.log")):
                shutil.rmtree(self._folder)
        self._release_folder()

    def stepped(self, steps: int) -> None:
        """Record the number of steps of this worker."""
        self._steps = steps
        if self._watchdog is not None:
            self._board.note(self.rank, steps, OWN)

    def _watched(self, call: Callable[P, R]) -> Callable[P, R]:
        """Return `call` such that the board shows this worker as waiting meanwhile."""

        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            if self._watchdog is None:
                return call(*args, **kwargs)
            self._board.note(self.rank, self._steps, "exchange")
            try:
                return call(*args, **kwargs)
            finally:  # code that catches the error is the user's own
                self._board.note(self.rank, self._steps, OWN)

        return watched

    def exchange(self, vector: Tensor, received: Mapping[int, Tensor]) -> Callable[[], None]:
        """Begin to exchange `vector`; the result waits for it."""
        return self._watched(self._group.exchange(vector, received))

    def exchange_parts(
        self, parts: Mapping[int, Tensor], received: Mapping[int, Tensor], tag: int = 0
    ) -> Exchange:
        """Begin to exchange parts; the result waits for them."""
        begun = self._group.exchange_parts(parts, received, tag)
        return _WatchedExchange(begun.arrived, self._watched(begun))

    def begin_maximum(self, values: np.ndarray) -> Ready:
        """Return the maximum at once, so that the board shows which worker waits."""
        return Ready(self.maximum(values))


@dataclass(frozen=True)
class _WatchedExchange:
    """An exchange whose end the board shows."""

    arrived: Callable[[], bool]
    end: Callable[[], None]

    def __call__(self) -> None:
        """Wait until all messages have arrived."""
        self.end()


def _hold_leader_folder(folder: Path) -> Callable[[], None]:
    """Hold the folder of this host's leader; return the function that releases it."""
    try:
        return hold_folder(folder)
    except OSError:  # the file system has no named pipes: the leader alone decides
        return lambda: None
