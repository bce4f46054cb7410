"""What processes on other hosts tell the launcher: lines on the channel that mpiexec forwards.

Their files and boards are on their own hosts, so what happens there travels on the standard error
that mpiexec carries to the launcher anyway: independent of MPI, it works where MPI hangs.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

_MARK = b"@manyhands "


def say(channel: int, kind: str, value: Any) -> None:
    """Tell the launcher something, in one line and one write."""
    with suppress(OSError):  # nobody listens any more: then mpiexec ends us anyway
        os.write(channel, _MARK + json.dumps([kind, value]).encode() + b"\n")


class Listener:
    """Follows mpiexec's log and returns what was told since the last time."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._offset = 0

    def heard(self) -> list[tuple[str, Any]]:
        """Return what is new, by kind; lines that another's output cut into are left out."""
        with self.log.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        found: list[tuple[str, Any]] = []
        for line in complete.splitlines():
            if line.startswith(_MARK):
                with suppress(ValueError):
                    kind, value = json.loads(line[len(_MARK) :])
                    found.append((kind, value))
        return found


def without(text: str) -> str:
    """Return a log without what was meant for the launcher."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if not line.startswith(_MARK.decode()))
