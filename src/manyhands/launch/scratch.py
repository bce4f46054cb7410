"""Private temporary folders that are removed however their process ends."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from manyhands.launch.host import kernel_id
from manyhands.launch.shm_cleanup import CleanupProcess, is_abandoned, remove_folder
from manyhands.launch.signals import defer_signals

_KERNEL = "kernel"  # a file in a private folder: under which kernel its processes are
_PREFIX, _DIGITS = "manyhands-", 12


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a temporary folder that only this user can open; remove it at the end.

    If this process is killed, a janitor removes it, and what workers leave in shared memory. If the
    janitor is killed as well, the next run on this host removes the folder.
    """
    remove_abandoned()
    folder = new_name()
    janitor = None
    try:
        janitor = make_folder(folder)
        yield folder
    finally:
        with defer_signals():
            remove_folder(folder)
            if janitor:
                janitor.dismiss()


def make_folder(folder: Path) -> CleanupProcess:
    """Make a private folder; return the process that removes it after a kill."""
    folder.mkdir(mode=0o700)
    (folder / _KERNEL).write_text(kernel_id())
    return CleanupProcess(folder)


def remove_abandoned() -> None:
    """Remove this user's private folders of runs on this host that were killed as a whole."""
    for folder in Path(tempfile.gettempdir()).glob(_PREFIX + "[0-9a-f]" * _DIGITS):
        with suppress(OSError):
            own = folder.lstat().st_uid == os.getuid()
            if own and (folder / _KERNEL).read_text() == kernel_id() and is_abandoned(folder):
                remove_folder(folder)


def new_name() -> Path:
    """Return an unused name for a private folder, known before the folder is made."""
    return Path(tempfile.gettempdir(), _PREFIX + uuid.uuid4().hex[:_DIGITS])
