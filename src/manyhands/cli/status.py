"""Shows what a long computation is doing: a line in a terminal, else now and then a line."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from manyhands.launch.environment import group_rank, has_terminal
from manyhands.launch.log_output import progress_console

FIRST, STILL = 3.0, 30.0  # seconds before a stage is named, and before it is named again


def is_silent() -> bool:
    """Say whether another process of the group prints: under mpiexec only rank 0 does."""
    return group_rank() > 0


class Status:
    """Names the stage that a command is at, on stderr.

    In a terminal the line is redrawn, with the seconds so far. Elsewhere a stage is printed once it
    has lasted three seconds, and again every 30 s; so a short computation prints nothing.

    Args:
        title: What is computed.
        shown: False: nothing is shown.
    """

    def __init__(self, title: str, *, shown: bool = True) -> None:
        self.title, self.shown = title, shown
        self._stage, self._begun, self._last = "starting", 0.0, 0.0
        self._named = False
        self._bar: Any = None
        self._task: Any = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="status", daemon=True)

    def __enter__(self) -> Status:
        self._begun = self._last = time.monotonic()
        if self.shown and has_terminal():
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("[bold]{task.description}"),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=progress_console(),
                transient=True,
            )
            self._task = self._bar.add_task(self.title, total=None, state=self._stage)
            self._bar.start()
        elif self.shown:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._bar:
            self._bar.stop()
        if self._thread.is_alive():
            self._thread.join()

    def stage(self, name: str) -> None:
        """Begin a stage."""
        self._stage, self._named = name, False
        if self._bar:
            self._bar.update(self._task, state=name)

    def _follow(self) -> None:
        while not self._over.wait(0.5):
            self.print_if_due()

    def print_if_due(self) -> None:
        """Print the stage if it is time."""
        now = time.monotonic()
        if now - self._last >= (STILL if self._named else FIRST):
            self._last, self._named = now, True
            text = f"{self.title}: {self._stage}, {now - self._begun:.0f} s"
            print(text, file=sys.stderr, flush=True)
