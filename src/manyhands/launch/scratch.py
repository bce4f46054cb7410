"""Private temporary folders that are removed however their process ends."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.launch.shm_cleanup import CleanupProcess, remove_folder
from manyhands.launch.signals import defer_signals


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a temporary folder that only this user can open; remove it at the end.

    If this process is killed, a janitor removes it, and what workers leave in shared memory.
    """
    folder = new_name()
    janitor = None
    try:
        folder.mkdir(mode=0o700)
        janitor = CleanupProcess(folder)
        yield folder
    finally:
        with defer_signals():
            remove_folder(folder)
            if janitor:
                janitor.dismiss()


def new_name() -> Path:
    """Return an unused name for a private folder, known before the folder is made."""
    return Path(tempfile.gettempdir(), f"manyhands-{uuid.uuid4().hex[:12]}")
