"""A board in shared memory on which every worker of a host notes where it is.

The launcher reads it for the progress bar and, when something goes wrong, to say who was where.
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
    """Where one worker is: `time` is the host's monotonic clock; `pid` is None on another host."""

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
        """Note which process the worker is, so that its death has a name.

        It has only begun, and may take long to import what it needs: its silence does not count,
        but the launcher's guard waits for its `enter` only so long.
        """
        self.rows[rank] = (os.getpid(), 0, 0, 0, np.inf)

    def enter(self, rank: int, steps: int = 0) -> None:
        """Note that the worker is there, and how many steps it has to do."""
        self.rows[rank] = (os.getpid(), 0, steps, 0, time.monotonic())
        if self.on_note:
            self.on_note(0, "start")

    def note(self, rank: int, step: int, operation: str) -> None:
        """Note what the worker does now."""
        cells = self._cells
        cells[rank, _TIME] = time.monotonic()  # first: half a note must not look like a late one
        cells[rank, _STEP] = step
        cells[rank, _OPERATION] = _NUMBERS[operation]
        if self.on_note:
            self.on_note(step, operation)

    def hear(self, rank: int, pid: int, step: int, steps: int, operation: int, age: float) -> None:
        """Note what was told of a worker on another host; it is not a process of this one."""
        self.rows[rank] = (-pid, step, steps, operation, time.monotonic() - age)

    def pid(self, rank: int) -> int:
        """Return a worker's process number, on whichever host it is."""
        return abs(int(self.rows[rank, _PID]))

    def ending(self) -> list[int]:
        """Return the workers of this host whose processes have no memory any more: they are ending.

        A process loses its memory first and is dead some milliseconds later. Meanwhile others fail
        who read from it, as MPI does within a host, and may even be dead before it.
        """
        return [n.rank for n in self.read() if n.pid and not _memory(n.pid)]

    def last_words(self, rank: int, text: str) -> None:
        """Leave a message where no file can be written any more."""
        said = np.frombuffer(text.encode()[:_WORDS], dtype=np.uint8)
        self.words[rank, : said.size] = said

    def heard(self) -> list[tuple[int, str]]:
        """Return the last words that were left, by rank."""
        texts = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in self.words]
        return [(rank, text) for rank, text in enumerate(texts) if text]

    def ask(self, signum: int) -> None:
        """Ask all workers to stop, as that signal would."""
        self.request[0] = signum

    def asked(self) -> int:
        """Return the signal by which the workers were asked to stop; 0 if they were not."""
        return int(self.request[0])

    def steps(self, rank: int, steps: int) -> None:
        """Note how many steps the worker has to do."""
        self.rows[rank, _STEPS] = steps

    def read(self) -> list[Note]:
        """Return the notes of the workers that have entered."""
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
    """Return how many pages a process has mapped; on a system that does not tell, one."""
    if not os.path.exists("/proc/self/statm"):
        return 1
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
