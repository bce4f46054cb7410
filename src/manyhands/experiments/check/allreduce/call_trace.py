"""What one process does in one call of the checked function: messages, calls, and waiting.

Waiting asks MPI and gives the core away in between, so that eight processes share two cores, and a
deadlock can be abandoned.
"""

from __future__ import annotations

import linecache
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from manyhands.experiments.check.allreduce import shared_progress as words
from manyhands.experiments.check.allreduce.shared_progress import Board

_HERE = str(Path(__file__).parent)
_SPINS = 200  # questions before a process that waits sleeps in between
_NAP = 200e-6


class Abandoned(BaseException):
    """The supervisor has ended this case."""


class Place(NamedTuple):
    """A line of source code."""

    file: str
    line: int
    function: str
    source: str


class Trace:
    """The calls of one process.

    Attributes:
        file: The checked function's file.
        case: The number of the current case.
        inside: Whether the checked function runs.
        counting: Whether collectives count: not in a communicator's first call, which may prepare.
        buffered: Whether a send returns before it is received.
        call: The MPI call that this process is in.
        messages, bytes, peers: What this process sent in the case, and how much to whom.
        collectives: Collective calls by name, each with the line of the first.
        notes: Rules of MPI that were broken, as (rule, message, place).
        open: Requests that are not complete.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.file = board, rank, ""
        self.words = board.ranks[rank]
        self.collectives: dict[str, Place | None] = {}
        self.buffered = False
        self.kept: list[Any] = []  # buffers of what was abandoned: MPI may still write there
        self.begin(-1)

    def begin(self, case: int) -> None:
        """Begin a case."""
        self.case = case
        self.messages = self.bytes = 0
        self.peers: Counter[int] = Counter()
        self.notes: list[tuple[str, str, Place | None]] = []
        self.open: list[Any] = []
        self.inside, self.counting, self.call = False, True, ""

    def sent(self, nbytes: int, peer: int) -> None:
        """Count a message."""
        self.messages += 1
        self.bytes += nbytes
        self.peers[peer] += 1

    def collective(self, name: str) -> None:
        """Count a collective call, or another one that is not point-to-point."""
        counts = self.counting or name.startswith("Win.") or self._is_own_call()
        if self.inside and counts and name not in self.collectives:
            self.collectives[name] = self.place()

    def _is_own_call(self) -> bool:
        """Return whether the line that calls MPI is in the checked file itself."""
        frame: FrameType | None = sys._getframe(1)
        while frame and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename == self.file

    def note(self, rule: str, message: str, place: Place | None) -> None:
        """Note a broken rule, once per line."""
        if self.inside and all((n[0], n[2]) != (rule, place) for n in self.notes):
            self.notes.append((rule, message, place))

    @contextmanager
    def calling(self, call: str) -> Iterator[None]:
        """Say which MPI call this is, while it may block in MPI itself."""
        self.call = call
        self.words[words.STATE] = words.BLOCKED
        yield
        self.words[words.STATE] = words.COMPUTING
        self.words[words.PROGRESS] += 1

    def wait(self, call: str, complete: Callable[[], bool]) -> None:
        """Return when `complete()` is true.

        Raises:
            Abandoned: If that is never going to happen.
        """
        self.call = call
        self.words[words.STATE] = words.POLLING
        spins = 0
        while not complete():
            spins += 1
            self.words[words.POLLS] += 1
            if self.board.orders[words.ABANDONED] == self.case >= 0:
                raise Abandoned
            if spins < _SPINS:
                os.sched_yield()
            else:
                time.sleep(_NAP)
        self.words[words.STATE] = words.COMPUTING
        self.words[words.PROGRESS] += 1

    def place(self, frame: FrameType | None = None) -> Place | None:
        """Return the innermost line of the checked file; of other code if there is none."""
        frame = frame or sys._getframe(1)
        other = None
        while frame:
            file = frame.f_code.co_filename
            if file == self.file:
                return _at(frame)
            if other is None and not file.startswith((_HERE, "<")) and "mpi4py" not in file:
                other = _at(frame)
            frame = frame.f_back
        return other


def _at(frame: FrameType) -> Place:
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Place(file, line, frame.f_code.co_name, linecache.getline(file, line).strip())
