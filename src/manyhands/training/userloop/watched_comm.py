"""A hang in a loop of the user's own becomes a report: who waits, who is missing, where each is.

Only waiting counts. Between two calls of `hands` a worker is in the user's own code, and may stay
there for as long as it likes, until another has waited for it for longer than the timeout.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.comm.communicator import Ready
from manyhands.comm.rendezvous import asked, host_leader
from manyhands.launch.host_watchdog import TURN, HostWatchdog, dump_stack_on_signal
from manyhands.launch.scratch import new_name
from manyhands.launch.shm_cleanup import CleanupProcess, hold_folder
from manyhands.launch.status_board import AFTER, BOARD_FILE, OWN, Board

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from manyhands.comm import Communicator


class Watched:
    """A group whose members note when they wait for each other, and a thread that looks at it.

    Collective: all processes of `group` make it, and each of them closes it.

    Args:
        group: The workers; this is a `Communicator` too, and does what that one does.
        timeout: Seconds of waiting after which the hang is told and all are ended.
    """

    def __init__(self, group: Communicator, timeout: float) -> None:
        self._group = group
        self.name, self.meter = group.name, group.meter
        self.rank, self.size = group.rank, group.size
        self._steps = 0
        self._watchdog: HostWatchdog | None = None
        free = signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
        if not all(group.gather(free and threading.current_thread() is threading.main_thread())):
            return  # the signal is the user's own
        leader = host_leader(group)
        self._janitor: CleanupProcess | None = None
        self._folder = Path(asked(group, lambda: str(self._make()), leader=leader))
        # The janitor removes the folder once every process of the host has let go of it or ended.
        self._let_go = self._janitor.release if self._janitor else _held(self._folder)
        self._board = Board(self._folder / BOARD_FILE, group.size)
        self._board.enter(self.rank)
        self._log = (self._folder / f"rank-{self.rank}.log").open("w")
        self._tell_no_more = dump_stack_on_signal(
            self._log
        )  # whoever tells of a hang asks for our stack
        patience = timeout + (0.0 if self.rank == leader else TURN * self.rank)
        self._watchdog = HostWatchdog(self._folder, group.size, self._folder, patience)
        group.barrier()  # every log is there before the first may go
        self._board.note(self.rank, 0, OWN)
        self._watchdog.start()

    def _make(self) -> Path:
        """Make a folder with an empty board, and what removes it if processes are killed."""
        folder = new_name()
        folder.mkdir(mode=0o700)
        self._janitor = CleanupProcess(folder)
        Board(folder / BOARD_FILE, self.size, create=True)
        return folder

    def close(self) -> None:
        """Watch no more; whoever is the last of its host clears away."""
        if self._watchdog is None:
            return
        self._board.note(self.rank, self._steps, AFTER)
        self._watchdog.stop()
        self._watchdog = None
        self._tell_no_more()
        self._log.close()
        with suppress(OSError):
            (self._folder / f"rank-{self.rank}.log").unlink()
            if not any(self._folder.glob("rank-*.log")):
                shutil.rmtree(self._folder)
        self._let_go()

    def stepped(self, steps: int) -> None:
        """Note how many steps this worker has done."""
        self._steps = steps
        if self._watchdog is not None:
            self._board.note(self.rank, steps, OWN)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        if self._watchdog is None:
            yield
            return
        self._board.note(self.rank, self._steps, "exchange")
        try:
            yield
        finally:  # whoever catches the error is in its own code
            self._board.note(self.rank, self._steps, OWN)

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the group, in place."""
        with self._waiting():
            self._group.allreduce(vector, algorithm)

    def broadcast(self, vector: Tensor, root: int = 0) -> None:
        """Give everyone root's `vector`, in place."""
        with self._waiting():
            self._group.broadcast(vector, root)

    def exchange(self, vector: Tensor, received: Mapping[int, Tensor]) -> Callable[[], None]:
        """Begin to exchange `vector`; what is returned waits for it."""
        end = self._group.exchange(vector, received)

        def arrive() -> None:
            with self._waiting():
                end()

        return arrive

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a few numbers over the group."""
        with self._waiting():
            return self._group.sum(values)

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum over the group."""
        with self._waiting():
            return self._group.maximum(values)

    def begin_maximum(self, values: np.ndarray) -> Ready:
        """Return the maximum at once: who waits for it is to be seen."""
        return Ready(self.maximum(values))

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's `value`, by rank."""
        with self._waiting():
            return self._group.gather(value)

    def barrier(self) -> None:
        """Wait for everyone."""
        with self._waiting():
            self._group.barrier()

    def lost(self, error: BaseException) -> bool:
        """Say whether `error` only tells that another worker is gone."""
        return self._group.lost(error)

    def release(self) -> None:
        """Let go of what was made for one run."""
        self._group.release()

    def abort(self, code: int) -> None:
        """End this process with that exit code, and with it the group."""
        self._group.abort(code)


def _held(folder: Path) -> Callable[[], None]:
    """Hold a folder of this host's leader; returns what lets go of it."""
    try:
        return hold_folder(folder)
    except OSError:  # the file system has no named pipes: the leader alone decides
        return lambda: None
