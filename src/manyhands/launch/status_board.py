"""A table in shared memory in which every worker of a host reports its position.

The launcher reads it for the progress bar and for error messages: which worker was where.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BOARD_FILE = "board"
EVENTS_FILE = "events.jsonl"  # beside the board: what rank 0 announces, a JSON object a line

OWN, AFTER = "its own code", "code after join"  # of a user's own loop, which nobody hurries
OPERATIONS = (
    "start",
    "load",
    "tune",
    "gradient",
    "exchange",
    "update",
    "agree",
    "regroup",
    "checkpoint",
    "serve",
    "evaluate",
    "record",
    "done",
    OWN,
    AFTER,
)
_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
_WORDS = 500  # bytes for a worker's last words
_PID, _STEP, _STEPS, _OPERATION, _TIME = range(5)


@dataclass(frozen=True)
class Note:
    """One worker's position: `time` is the host's monotonic clock; `pid` None on other hosts."""

    rank: int
    pid: int | None
    step: int
    steps: int
    operation: str
    time: float


class Board:
    """A row per worker: pid, step, steps to do, operation, time; and one for the launcher."""

    def __init__(self, path: Path, size: int, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes((size + 1) * 5 * 8 + size * _WORDS))
        everything = np.memmap(path, dtype=np.float64, mode="r+", shape=(size + 1, 5))
        self.rows, self.request = everything[:size], everything[size]
        # The same, ten times as fast to write to.
        self._cells: Any = memoryview(everything)  # type: ignore[arg-type]
        self.words = np.memmap(
            path, np.uint8, mode="r+", offset=everything.nbytes, shape=(size, _WORDS)
        )
        self.on_note: Callable[[int, str], None] | None = None  # for faults that tests plan

    def announce(self, rank: int) -> None:
        """Record the worker's process, so that its death can be attributed.

        It has only begun, and may take long to import what it needs: its silence does not count,
        but the launcher's guard waits for its `enter` only so long.
        """
        self.rows[rank] = (os.getpid(), 0, 0, 0, np.inf)

    def enter(self, rank: int, steps: int = 0) -> None:
        """Record that the worker has started, and how many steps it has to do."""
        self.rows[rank] = (os.getpid(), 0, steps, 0, time.monotonic())
        if self.on_note:
            self.on_note(0, "start")

    def note(self, rank: int, step: int, operation: str) -> None:
        """Record the worker's current step and operation."""
        cells = self._cells
        cells[rank, _TIME] = time.monotonic()  # first: half a note must not look like a late one
        cells[rank, _STEP] = step
        cells[rank, _OPERATION] = _NUMBERS[operation]
        if self.on_note:
            self.on_note(step, operation)

    def note_remote(
        self, rank: int, pid: int, step: int, steps: int, operation: int, age: float
    ) -> None:
        """Record the reported position of a worker on another host."""
        self.rows[rank] = (-pid, step, steps, operation, time.monotonic() - age)

    def pid(self, rank: int) -> int:
        """Return a worker's process id, on whichever host it runs."""
        return abs(int(self.rows[rank, _PID]))

    def ending(self) -> list[int]:
        """Return this host's workers whose processes have lost their memory: they are ending.

        A process loses its memory first and is dead some milliseconds later. Meanwhile others fail
        who read from it, as MPI does within a host, and may even be dead before it.
        """
        return [n.rank for n in self.read() if n.pid and not _memory(n.pid)]

    def leave_message(self, rank: int, text: str) -> None:
        """Leave a message in memory, for when no file can be written."""
        encoded = np.frombuffer(text.encode()[:_WORDS], dtype=np.uint8)
        self.words[rank, : encoded.size] = encoded

    def messages(self) -> list[tuple[int, str]]:
        """Return the messages that workers left, with their ranks."""
        texts = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in self.words]
        return [(rank, text) for rank, text in enumerate(texts) if text]

    def request_stop(self, signum: int) -> None:
        """Ask all workers to stop, as that signal would."""
        self.request[0] = signum

    def stop_signal(self) -> int:
        """Return the signal that asked the workers to stop; 0 if none did."""
        return int(self.request[0])

    def steps(self, rank: int, steps: int) -> None:
        """Record how many steps the worker has to do."""
        self.rows[rank, _STEPS] = steps

    def read(self) -> list[Note]:
        """Return the positions of the workers that have started."""
        return [
            Note(
                rank,
                int(r[_PID]) if r[_PID] > 0 else None,
                int(r[_STEP]),
                int(r[_STEPS]),
                OPERATIONS[int(r[_OPERATION])],
                float(r[_TIME]),
            )
            for rank, r in enumerate(np.array(self.rows))
            if r[_PID]
        ]


def _memory(pid: int) -> int:
    """Return the number of pages a process has mapped; 1 if the system does not say."""
    if not os.path.exists("/proc/self/statm"):
        return 1
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
