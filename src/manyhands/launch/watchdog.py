"""Supervises a group of workers: forwards signals, detects hangs, cleans up shared memory.

The launcher holds a guard for as long as its workers run.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from manyhands.errors import WorkerError
from manyhands.launch import atomic_files, shm_cleanup, signals
from manyhands.launch.shm_cleanup import SHARED
from manyhands.launch.status_board import AFTER, OWN, Board, Note

_LOOK = 0.5  # seconds between two looks after the workers
_SOON = 0.05  # seconds at the most until one who has begun is watched
_MAPPED = 3.0  # seconds in which a file that is new in shared memory is mapped by who made it
_ABORTING = 10.0  # seconds in which a group ends of which one has failed; others wait five of them
_LEAVING = 3.0  # seconds that a group which has lost members has to leave MPI
_HALF_A_NOTE = 0.01  # seconds in which whoever writes a note has written all of it
_STACKS = 0.5  # seconds for the workers to write their stacks
START_SECONDS = 120.0  # seconds beside the timeout in which all must have begun: imports take long
_GROUP = -1  # stands for the group where ranks do
_BEFORE = ("start", "load", "tune")  # all that a worker does before it has met the others
# Where one waits for others.
_WAITS = ("exchange", "agree", "evaluate", "regroup", "checkpoint", "serve")


class Watchdog:
    """Supervises one group; a context manager that handles SIGINT, SIGTERM and SIGHUP.

    Args:
        board: Where the workers note what they do.
        logs: The folder with the workers' logs, into which they write their stacks.
        timeout: Seconds without any note after which a worker counts as hanging.
        end: Ends all workers at once.
        start: Seconds in which every worker must have entered, counted from now and from the last
            note of any; None where not all of them are to be seen on this board.
        survivors_continue: Whoever hangs is ended alone, and counts as dead.
        group: The process that started the workers; `wait` does not outlast it.
        end_early: End at the first signal where no worker has completed a step: nothing is lost.
    """

    def __init__(
        self,
        board: Board,
        logs: Path,
        timeout: float,
        end: Callable[[], None],
        start: float | None = None,
        *,
        survivors_continue: bool = False,
        group: int | None = None,
        end_early: bool = False,
    ) -> None:
        self.group, self.end_early = group, end_early
        self.start, self._begun = start, time.monotonic()
        self.survivors_continue, self._grace_until = survivors_continue, 0.0
        self.board, self.logs, self.timeout, self.end = board, logs, timeout, end
        self.ended = ""  # by a signal, at once: in which way
        self._ended = math.inf  # and when
        self.segments: set[str] = set()
        self._before = set(shm_cleanup.list_segments())  # not our workers' making, whoever maps it
        self._checked = 0.0
        self._emptied = self._failed = math.inf  # since when no worker lives; since when one failed
        self._unclaimed: set[str] = set()  # new in shared memory, and not seen to be a worker's
        self._known: set[int] = set()  # the workers who were there at the last look
        self._unclaimed_until = 0.0  # when what is strange will count as somebody else's
        self._handlers: dict[int, Any] = {}
        self.died: int | None = None  # the first rank that was gone before it was done
        self._order_unknown = (
            False  # several went, not all of them watched: others must tell who began
        )
        self._pidfds: dict[int, int] = {}  # ranks by a file that can be read when they are gone
        self._epoll: select.epoll | None = None  # lists these files as they become so, in order
        self.exits: list[int] = []  # file descriptors to read from when a process has exited
        self._answers = False  # this process does what a worker waits for

    def __enter__(self) -> Watchdog:
        if hasattr(os, "pidfd_open"):
            self._epoll = select.epoll()
            self.exits = [self._epoll.fileno()]
            if self.group is not None:
                self._watch_process(self._epoll, _GROUP, self.group)
        self._handlers = signals.install(self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        signals.restore(self._handlers)
        for handle in self._pidfds:
            os.close(handle)
        if self._epoll:
            self._epoll.close()
        self._clear_segments()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Ask the workers to stop after their step; at the second signal, end them at once.

        The first time, too, where there is nothing to write a checkpoint of.
        """
        if self.board.stop_signal():
            self.ended = f"ended at once by a second signal, {signal.Signals(signum).name}"
        elif self.end_early and self._before_first_step():
            self.ended = f"{signals.describe(signum)} before the first step"
        if not self.board.stop_signal():
            self.board.request_stop(signum)
        if self.ended:
            self._ended = min(self._ended, time.monotonic())
            self.end()
            if self._answers:  # or it would go on with what no worker waits for any more
                raise signals.exception_for(signum)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Do something inside that a worker waits for; a signal that ends the group raises there.

        However long it takes, the workers count as hanging only a timeout later.
        """
        self._answers = True
        try:
            yield
        finally:
            self._answers, self._grace_until = False, time.monotonic() + self.timeout

    def _before_first_step(self) -> bool:
        """Return whether no worker has completed a step; measuring does not count."""
        return all(n.step == 0 or n.operation in _BEFORE for n in self.board.read())

    def wait(self, seconds: float) -> None:
        """Wait up to so many seconds, and record which worker exits first.

        Returns as soon as one is gone, or the group, and before long while some have not begun.
        An mpiexec that ends the others at once does not always tell which was the first. The kernel
        lists those who have gone in the order in which they went, also where all have.
        """
        notes = self.board.read()
        deaf = self.group is not None and _GROUP not in self._pidfds.values()
        if deaf or not self._epoll or len(notes) < len(self.board.rows):
            seconds = min(seconds, _SOON)
        if not self._epoll:
            time.sleep(seconds)
            return
        lost = self._watch_workers(self._epoll, notes)
        exited = self._poll_exited(self._epoll, 0.0 if lost and self.died is None else seconds)
        watched, notes = set(self._pidfds.values()), self.board.read()
        if exited:  # who has come meanwhile may have gone even before
            lost += self._watch_workers(self._epoll, notes)
            later = self._poll_exited(self._epoll, 0.0)
            lost += [rank for rank in later if rank not in watched]
            exited += [rank for rank in later if rank in watched]
        done = {n.rank for n in notes if n.operation == "done"}  # now: who was may work again
        gone = [rank for rank in dict.fromkeys(lost + exited) if rank not in {*done, _GROUP}]
        others = [n for n in notes if n.pid and n.rank not in done and n.rank not in gone]
        local = sum(bool(n.pid) for n in notes) == len(self.board.rows)
        self._order_unknown |= len(gone) > 1 and bool(set(lost) & set(gone))
        if gone and self.died is None and not self._order_unknown and (others or local):
            self.died = gone[0]
        elif lost:  # it may have been one on another host
            time.sleep(min(seconds, _SOON))

    def _watch_workers(self, watch: select.epoll, notes: list[Note]) -> list[int]:
        """Watch all local workers; return the ranks that exited before they were watched."""
        here = {n.rank: n.pid for n in notes if n.pid and n.operation != "done"}
        return [rank for rank, pid in here.items() if not self._watch_process(watch, rank, pid)]

    def _poll_exited(self, watch: select.epoll, seconds: float) -> list[int]:
        """Return the ranks that have exited since the last call, in order; wait for the first."""
        return [self._pidfds[handle] for handle, _ in watch.poll(seconds)]

    def _watch_process(self, watch: select.epoll, rank: int, pid: int) -> bool:
        """Watch a process; return whether it may still be alive."""
        if rank not in self._pidfds.values():
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                return False
            except OSError:  # not on this system
                return True
            self._pidfds[handle] = rank
            watch.register(handle, select.EPOLLIN | select.EPOLLONESHOT)
        return True

    def check(self) -> None:
        """Check the workers for hangs; call it periodically.

        Raises:
            WorkerError: When one has hung for longer than the timeout: who, where, since when.
        """
        now = time.monotonic()
        if now - self._checked < _LOOK:
            return
        self._checked = now
        notes = self.board.read()
        self._track_segments(notes, now)
        if hanging := self._hanging(notes, now):
            time.sleep(_HALF_A_NOTE)
            notes = self.board.read()
            hanging = self._hanging(notes, now)
        if (
            hanging
            and now > self._grace_until
            and not (self.survivors_continue and self._kill_hung(hanging, now))
        ):
            raise self._report(notes, now)
        if self.start is not None:
            self._check_start_timeout(notes, now, self.start)

    def _track_segments(self, notes: list[Note], now: float) -> None:
        """Record the segments that workers map, while some segment has no known owner.

        To read the maps of one worker takes a millisecond, for which another worker may wait.
        """
        pids = {n.pid for n in notes if n.pid}
        listed = {
            path for path in shm_cleanup.list_segments() if shm_cleanup.is_mpi_or_gpu_name(path)
        }
        strange = listed - self._before - self.segments
        if strange - self._unclaimed or pids - self._known:
            self._unclaimed_until = now + _MAPPED
        self._unclaimed, self._known = strange, pids
        if strange and now < self._unclaimed_until:
            for pid in pids:
                self.segments |= _segments(pid) - self._before

    def _hanging(self, notes: list[Note], now: float) -> list[Note]:
        """Return the workers without progress for longer than the timeout."""
        late = [n for n in notes if now - n.time > self.timeout]
        if self.start is not None and not self._all_entered(notes):
            late = []  # whoever is there waits for the others, who may take long to import
        hanging = [n for n in late if n.operation not in ("done", OWN, AFTER)]
        if self.survivors_continue:
            hanging = [n for n in hanging if n.pid and _state(n.pid) not in ("Z", "")]
        return hanging

    def overdue(self, *, failed: bool = False) -> bool:
        """Return whether mpiexec should have ended: no worker is left, or one has `failed`.

        MPI may not let survivors go alone; and a helper of mpiexec may be stopped.
        """
        now, notes = time.monotonic(), self.board.read()
        if now - self._ended > _LEAVING:  # one that was just being started may have missed it
            return True
        self._failed = (
            min(self._failed, now) if failed and not self.survivors_continue else math.inf
        )
        if now - self._failed > _ABORTING:
            return sum(bool(n.pid) for n in notes) == len(self.board.rows)
        if not self.survivors_continue and not self._ending(notes):
            return False
        living = [n for n in notes if n.pid and _state(n.pid) not in ("Z", "")]
        if self.survivors_continue:
            late = [n for n in living if n.operation == "done" and now - n.time > _LEAVING]
            return 0 < len(living) == len(late) < len(notes)
        self._emptied = math.inf if living else min(self._emptied, now)
        return now - self._emptied > _LEAVING

    def _ending(self, notes: list[Note]) -> bool:
        """Return whether all workers are on this host and about to end: asked to, or done."""
        here = sum(bool(n.pid) for n in notes) == len(self.board.rows)
        return here and (
            bool(self.board.stop_signal()) or all(n.operation == "done" for n in notes)
        )

    def _kill_hung(self, hanging: list[Note], now: float) -> bool:
        """Kill the hung workers so that the others can continue; return whether there were any.

        One who waits for others does not hang, nor does anybody while another is stopped: it may
        wait for that one. One who is stopped could come back, and would then believe that it still
        belongs to the group: killed, it cannot.
        """
        stopped = [n for n in hanging if _state(n.pid or 0) == "T"]
        guilty = stopped or [n for n in hanging if n.operation not in _WAITS]
        for pid, rank in [(n.pid, n.rank) for n in guilty if n.pid]:
            words = f"manyhands: no word for {self.timeout:g} s; the others go on without this one"
            path = self.logs / f"rank-{rank}.log"
            with suppress(OSError), os.fdopen(atomic_files.append(path), "a") as log:
                log.write(words + "\n")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._grace_until = now + self.timeout  # time for the others to notice
        return bool(guilty)

    def _all_entered(self, notes: list[Note]) -> bool:
        """Return whether all workers have started, by the board or by what one already does."""
        trains = any(n.operation not in _BEFORE for n in notes)
        return trains or sum(math.isfinite(n.time) for n in notes) == len(self.board.rows)

    def _check_start_timeout(self, notes: list[Note], now: float, patience: float) -> None:
        """Raise if some workers have not started in time."""
        there = {n.rank for n in notes if math.isfinite(n.time)}
        absent = [rank for rank in range(len(self.board.rows)) if rank not in there]
        self._begun = max([self._begun, *(n.time for n in notes if n.rank in there)])
        if not absent or now - self._begun <= patience:
            return
        begun = {n.rank: _describe(n) for n in notes}
        who = ", ".join(begun.get(rank, f"rank {rank} (not heard of)") for rank in absent)
        raise WorkerError(
            f"no word for {patience:g} s, and not all workers have begun; missing: {who}; several "
            "hosts must reach each other on every port: see the firewall, or name the interface",
            rank=absent[0],
        )

    def _report(self, notes: list[Note], now: float) -> WorkerError:
        """Return the error for a hang: missing ranks, operations, steps and stacks."""
        notes = [n for n in notes if n.operation != "done"]
        waiting = [n for n in notes if n.operation in _WAITS]
        missing = [n for n in notes if n.pid and _state(n.pid) in ("T", "Z", "")]
        missing = missing or [n for n in notes if n not in waiting]
        missing = missing or [min(notes, key=lambda n: n.time)]
        sizes = {n.rank: _size(self.logs / f"rank-{n.rank}.log") for n in notes}
        # The signal would end the others: not begun, or past join, where it is the user's again.
        entered = [n for n in notes if math.isfinite(n.time) and n.operation != AFTER]
        for pid in filter(None, (n.pid for n in entered)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)  # faulthandler writes the stack into the log
        able = [n.rank for n in entered if n.pid and _state(n.pid) not in ("T", "Z", "")]
        self._await_stacks(able, sizes)
        lines = [f"no word for {self.timeout:g} s; missing: " + ", ".join(map(_describe, missing))]
        for note in notes:
            lines.append(f"{_describe(note)}, {max(0.0, now - note.time):.0f} s ago")
            lines += _stack(self.logs / f"rank-{note.rank}.log", sizes[note.rank])
        return WorkerError("\n".join(lines), rank=missing[0].rank)

    def _await_stacks(self, ranks: list[int], sizes: dict[int, int]) -> None:
        """Wait until those ranks have written their stacks."""
        paths = {rank: self.logs / f"rank-{rank}.log" for rank in ranks}
        logs = {path: sizes[rank] for rank, path in paths.items() if path.exists()}
        time.sleep(_STACKS)
        deadline, now = time.monotonic() + 10 * _STACKS, _sizes(logs)
        whole = False
        while not whole and time.monotonic() < deadline:
            time.sleep(_STACKS / 5)
            before, now = now, _sizes(logs)
            whole = now == before and all(now[path] > size for path, size in logs.items())

    def _clear_segments(self) -> None:
        """Unlink the shared-memory segments that killed workers left behind."""
        # A worker that died at once was never looked at: what is new, named as MPI's and CUDA's
        # is and in nobody's use can only be of such a one.
        shm_cleanup.unlink(self.segments | shm_cleanup.abandoned_segments(self._before))


def _describe(note: Note) -> str:
    states = {"T": "stopped", "Z": "dead", "": "gone"}
    state = states.get(_state(note.pid), "in") if note.pid else "on another host in"
    return f"rank {note.rank} ({state} {note.operation}, step {note.step})"


def _state(pid: int) -> str:
    """Return the process's state letter, "" if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # many a second: a Path would intern each number
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _segments(pid: int) -> set[str]:
    """Return the MPI and GPU segments that a process has mapped."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            lines = file.read().splitlines()
    except OSError:
        return set()
    paths = {line[line.index(SHARED) :] for line in lines if SHARED in line}
    return {
        path for path in paths if shm_cleanup.is_mpi_or_gpu_name(path) and "(deleted)" not in path
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sizes(paths: Iterable[Path]) -> dict[Path, int]:
    return {path: _size(path) for path in paths}


def _stack(path: Path, start: int) -> list[str]:
    """Return the lines added to a worker's log since `start`: its stack."""
    try:
        gained = path.read_bytes()[start:].decode(errors="replace")
        return ["    " + line for line in gained.splitlines()]
    except OSError:
        return []
