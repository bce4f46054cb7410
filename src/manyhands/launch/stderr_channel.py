"""Messages from other hosts to the launcher, as lines on the stderr that mpiexec forwards.

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


def send(channel: int, kind: str, value: Any) -> None:
    """Send the launcher one message, as one line in one write."""
    with suppress(OSError):  # nobody listens any more: then mpiexec ends us anyway
        os.write(channel, _MARK + json.dumps([kind, value]).encode() + b"\n")


class Listener:
    """Reads new messages from mpiexec's log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._offset = 0

    def read(self) -> list[tuple[str, Any]]:
        """Return the new messages as (kind, value); damaged lines are left out."""
        with self.log.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        messages: list[tuple[str, Any]] = []
        for line in complete.splitlines():
            if line.startswith(_MARK):
                with suppress(ValueError):
                    kind, value = json.loads(line[len(_MARK) :])
                    messages.append((kind, value))
        return messages


def strip_messages(text: str) -> str:
    """Return a log without the messages for the launcher."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if not line.startswith(_MARK.decode()))
