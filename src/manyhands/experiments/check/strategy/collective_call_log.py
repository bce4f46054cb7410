"""Logs each process's collective calls, and finds two that do not belong together.

Every process of a group must make the same calls in the same order. Before a call a process writes
what it is about to do where the others see it, and compares: two that differ would wait forever, or
take each other's numbers.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from manyhands.errors import WorkerError
from manyhands.launch.atomic_files import PACKAGE

FILE, MISMATCH = "calls", "mismatch.json"
COLLECTIVE = (
    "allreduce", "allreduce_through", "broadcast", "sum", "maximum", "begin_maximum", "gather",
    "barrier", "split",
)  # fmt: skip
PAIRWISE = ("exchange", "exchange_parts")
_SIZED = ("allreduce", "allreduce_through", "broadcast", "sum", "maximum", "begin_maximum")
_OURS = " (by manyhands, between two steps or at the end)"  # where no line of the user's runs
_SLOTS, _WIDTH = 64, 600  # calls of a group that are remembered, and bytes of each
_GROUPS = 8  # of a trial whose calls are compared: the whole, and those that `split` made first
MOST = 1_000_000  # calls of a group in a trial


class CallLog:
    """The last calls of every process, in memory that they share.

    A collective call's number counts from `MOST` times the trial's and the group's. Calls between
    two workers need not be equally many everywhere, and count downwards. `at` has, for each
    process, the number of its last call, and 1 while it is inside.
    """

    def __init__(self, folder: Path, size: int, *, create: bool = False) -> None:
        path, words = folder / FILE, size * (3 + _GROUPS * _SLOTS)
        if create:
            path.write_bytes(bytes(8 * words + size * (1 + _GROUPS * _SLOTS) * _WIDTH))
        table = np.memmap(path, np.int64, "r+", shape=(size, 3 + _GROUPS * _SLOTS))
        self.at, self._numbers = table[:, :2], table[:, 2:]
        self._texts = np.memmap(
            path, np.uint8, "r+", offset=8 * words, shape=(size, 1 + _GROUPS * _SLOTS, _WIDTH)
        )

    def enter(self, rank: int, number: int, call: dict[str, Any]) -> None:
        """Write a call that is about to begin."""
        text = json.dumps(call).encode()
        if len(text) > _WIDTH:
            text = json.dumps({**call, "place": None}).encode()
        slot = _slot(number)
        self._texts[rank, slot, : len(text)] = np.frombuffer(text, np.uint8)
        self._texts[rank, slot, len(text) :] = 0
        self._numbers[rank, slot] = number  # last: a number stands for a whole text
        self.at[rank] = number, 1

    def leave(self, rank: int) -> None:
        """Note that the call is over."""
        self.at[rank, 1] = 0

    def read(self, rank: int, number: int) -> dict[str, Any] | None:
        """Return that call of a process, if it has begun it and it is remembered."""
        slot = _slot(number)
        if number == 0 or self._numbers[rank, slot] != number:
            return None
        with suppress(ValueError):  # being overwritten
            call: dict[str, Any] = json.loads(bytes(self._texts[rank, slot]).rstrip(b"\0"))
            return call
        return None

    def row(self, rank: int, number: int | None = None) -> dict[str, Any]:
        """Return where a process is, by default in its last call."""
        last, inside = map(int, self.at[rank])
        call = self.read(rank, last if number is None else number) or {}
        name = call.get("call", "")
        return {
            "rank": rank,
            "state": "waits" if inside or number is not None else "computes",
            "call": name if inside or number is not None else "",
            "place": call.get("place"),
            "step": call.get("step", 0),
        }


def _slot(number: int) -> int:
    """Return where a call is remembered: each group has a ring, and exchanges have one place."""
    return 0 if number < 0 else 1 + number // MOST % _GROUPS * _SLOTS + number % _SLOTS


@dataclass
class Group:
    """A group of processes whose calls are traced.

    Attributes:
        index: 0 for the whole; of one that `split` made, what none of its members has used.
        members: The ranks of its processes in the whole.
        calls: How many calls this process has begun.
    """

    index: int
    members: Sequence[int]
    calls: int = 0


class Tracer:
    """Logs the calls of one process.

    Attributes:
        step: Says which step it is in.
        note: Called before and after every call.
    """

    def __init__(
        self, log: CallLog, folder: Path, rank: int, note: Callable[[int, str], None]
    ) -> None:
        self.log, self.folder, self.rank, self.note = log, folder, rank, note
        self.step: Callable[[], int] = lambda: 0
        self.files: tuple[str, ...] = ()  # which are the user's, even inside of the package
        self.groups: dict[int, Group] = {}
        self.trial, self.between, self.matched, self.size = 0, 0, False, 1

    def begin(self, trial: int, size: int, *, matched: bool) -> None:
        """Begin a trial; with `matched` all processes must make the same calls."""
        self.trial, self.groups, self.size, self.matched = trial, {}, size, matched
        self.step = lambda: 0

    def attach(self, group: Any) -> None:
        """Log the calls of the whole group of a trial, and of those that it is split into."""
        self._attach(group, Group(0, range(self.size)))

    def _attach(self, group: Any, traced: Group) -> None:
        self.groups[traced.index] = traced
        for name in (*COLLECTIVE, *PAIRWISE):
            if method := getattr(group, name, None):
                setattr(group, name, self._traced(name, method, traced))

    def _traced(self, name: str, method: Callable[..., Any], group: Group) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._enter(name, args, group)
            try:
                result = method(*args, **kwargs)
                if name == "split":
                    members = result.gather([self.rank, max(self.groups) + 1])
                    index = max(unused for _, unused in members)
                    self._attach(result, Group(index, [rank for rank, _ in members]))
                return result
            finally:
                self.log.leave(self.rank)
                self.note(self.step(), "gradient")

        return call

    def _enter(self, name: str, args: Sequence[Any], group: Group) -> None:
        count = int(np.prod(np.shape(args[0]))) if name in _SIZED else -1
        about = name if count < 0 else f"{name} of {count} number{'' if count == 1 else 's'}"
        step, place = self.step(), self._place()
        about += "" if place else _OURS
        call = {"call": about, "step": step, "place": place}
        self.note(step, "exchange")
        if name in PAIRWISE or group.index >= _GROUPS:
            self.between -= 1
            self.log.enter(self.rank, self.between, call)
            return
        group.calls += 1
        number = ((self.trial + 1) * _GROUPS + group.index) * MOST + group.calls
        self.log.enter(self.rank, number, call)
        if self.matched:
            self._compare(call, number, group.members)

    def _compare(self, call: dict[str, Any], number: int, members: Sequence[int]) -> None:
        """Refuse a call that is not that of the others in its group."""
        for other in members:
            theirs = self.log.read(other, number)
            if theirs and any(theirs[key] != call[key] for key in ("call", "step")):
                self._refuse(number, members)

    def _refuse(self, number: int, members: Sequence[int]) -> None:
        """End the run with where each process of a group is."""
        rows = []
        for rank in members:
            here = self.log.read(rank, number)
            rows.append(self.log.row(rank, number if here else None))
        with suppress(FileExistsError), (self.folder / MISMATCH).open("x") as file:
            json.dump(rows, file)
        calls = "; ".join(
            f"rank {row['rank']}: {row['call'] or 'no call'}, step {row['step']}" for row in rows
        )
        raise WorkerError(f"workers make different calls: {calls}", rank=self.rank)

    def _place(self) -> list[Any] | None:
        """Return the user's line that is running: file, line, function and source."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if file in self.files or is_users(file):
                return describe_place(file, frame.f_lineno, frame.f_code.co_name)
            frame = frame.f_back
        return None


def describe_place(file: str, line: int, function: str) -> list[Any]:
    """Return a place as JSON can hold it: file, line, function and source."""
    return [file, line, function, linecache.getline(file, line).strip()[:120]]


def is_users(file: str) -> bool:
    """Say whether a file is neither of manyhands nor of Python nor of an installed package."""
    library = os.path.dirname(os.__file__)
    return not (file.startswith((str(PACKAGE), library, "<")) or "-packages" in file)
