"""Private temporary folders, removed however their process ends: the data's copy lies in one."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.launch.shm_cleanup import Janitor, remove
from manyhands.launch.signals import deferred


@contextmanager
def private_folder() -> Iterator[Path]:
    """Give a new temporary folder that only this user can open; remove it at the end.

    If this process is killed, a janitor removes it, and what workers leave in shared memory.
    """
    folder = new_name()
    janitor = None
    try:
        folder.mkdir(mode=0o700)
        janitor = Janitor(folder)
        yield folder
    finally:
        with deferred():
            remove(folder)
            if janitor:
                janitor.dismiss()


def new_name() -> Path:
    """Return a name for a private folder: known before it is made, so that none is forgotten."""
    return Path(tempfile.gettempdir(), f"manyhands-{uuid.uuid4().hex[:12]}")
