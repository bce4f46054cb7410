"""Supervises the workers of a host without a launcher, in a thread of one of its processes.

On another host than the launcher's it tells the launcher every now and then where each worker is,
and ends them only when the launcher, cut off, did not. In a group that somebody else started there
is no launcher: then it is the guard, and turns a hang into a report.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from manyhands.errors import WorkerError
from manyhands.launch.environment import wait_until_read
from manyhands.launch.host import hostname
from manyhands.launch.status_board import EVENTS_FILE, OPERATIONS, Board
from manyhands.launch.stderr_channel import send
from manyhands.launch.watchdog import Watchdog

_BEAT = 5.0  # seconds between two words to the launcher
_EARLY = 0.25  # likewise in the beginning, so that the launcher soon knows who is there
_GRACE = 30.0  # seconds that the launcher has to end us, after it must have noticed a hang
TURN = 2.0  # seconds between two processes of a host, in which the first may tell of a hang
_ROWS = 24  # workers in one line: pipes carry lines of up to 4 KiB whole


def dump_stack_on_signal(log: IO[str] | None = None) -> Callable[[], None]:
    """Write the main thread's stack to `log` or stderr on SIGUSR1.

    Of the other threads nothing: they run on while the signal is handled, and to follow the frames
    of one that runs kills the process (segmentation fault) every now and then.

    Returns:
        What ends that. The signal is then what it was before (MPICH has a use for it), or what the
        user's code has made of it meanwhile.
    """
    faulthandler.register(signal.SIGUSR1, log or sys.stderr, all_threads=False)

    def end() -> None:
        faulthandler.unregister(signal.SIGUSR1)
        users = signal.getsignal(signal.SIGUSR1)
        if users != signal.SIG_DFL:  # hidden by what was there before and is back now
            with suppress(ValueError):  # only the main thread may
                signal.signal(signal.SIGUSR1, users)

    return end


class HostWatchdog(threading.Thread):
    """The supervising thread of one host; call `stop` when the work is done.

    Args:
        folder: The host's private folder, with its board.
        size: Processes in the whole group.
        logs: Where the workers' logs are.
        timeout: Seconds without any note after which a worker counts as hanging.
        channel: A file descriptor whose lines reach the launcher; None if there is no launcher.
    """

    def __init__(
        self, folder: Path, size: int, logs: Path, timeout: float, channel: int | None = None
    ) -> None:
        super().__init__(name="manyhands-watchdog", daemon=True)
        self.folder, self.channel = folder, channel
        self.board = Board(folder / "board", size)
        patience = timeout if channel is None else timeout + _GRACE
        self.watchdog = Watchdog(self.board, logs, patience, end=lambda: None)
        self.interval = min(_BEAT, timeout / 4)
        self._events = 0
        self._stopped = threading.Event()

    def run(self) -> None:
        """Send heartbeats and check the workers until stopped."""
        begun = time.monotonic()
        while not self._stopped.wait(_EARLY if time.monotonic() - begun < _BEAT else self.interval):
            if self.channel is not None:
                self._send_heartbeat(self.channel)
            try:
                self.watchdog.check()
            except WorkerError as error:
                self._report_and_kill(str(error))

    def stop(self) -> None:
        """End the thread after a last heartbeat."""
        self._stopped.set()
        self.join()
        if self.channel is not None:
            self._send_heartbeat(self.channel)

    def _send_heartbeat(self, channel: int) -> None:
        now = time.monotonic()
        rows = [
            [n.rank, n.pid, n.step, n.steps, OPERATIONS.index(n.operation), round(now - n.time, 1)]
            for n in self.board.read()
        ]
        for start in range(0, len(rows), _ROWS):
            send(channel, "beat", rows[start : start + _ROWS])
        with suppress(OSError, ValueError):
            whole = (self.folder / EVENTS_FILE).read_text().rpartition("\n")[0]
            lines = whole.splitlines()  # what is half written waits for the next beat
            for line in lines[self._events :]:
                self._events += 1
                send(channel, "event", json.loads(line))

    def _report_and_kill(self, report: str) -> None:
        """Report the hang and kill every worker of this host, this process last."""
        others = [n.pid for n in self.board.read() if n.pid and n.pid != os.getpid()]
        aside = claim_folder(self.folder)
        if not aside:
            time.sleep(TURN)  # another tells, and ends us; if none has, it is we who tell
        with suppress(OSError):
            print(f"manyhands: on {hostname()}: {report}", file=sys.stderr, flush=True)
        if aside:
            shutil.rmtree(aside, ignore_errors=True)
        wait_until_read()
        for pid in [*others, os.getpid()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def claim_folder(folder: Path) -> Path | None:
    """Rename a host's folder before its removal; return the new path, None if another has.

    All of it at once: removed file by file, one who is about to tell of a failure could find a
    folder from which only the note of the first is gone, and tell again.
    """
    aside = folder.with_name(f"{folder.name}-{os.getpid()}")
    try:
        return folder.rename(aside)
    except OSError:
        return None
