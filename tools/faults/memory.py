"""Which shared memory is a run's own: others use /dev/shm at the same time, and leave things."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from processes import processes

SHARED = Path("/dev/shm")
INTERVAL = 0.1  # seconds between two looks; MPI and torch keep theirs as long as they live


def mapped(folder: Path) -> set[str]:
    """Return the names of the shared memory that a run's processes have mapped now.

    They are those whose temporary folder is in `folder`.
    """
    found, mark = set(), f"\0TMPDIR={folder}".encode()
    for pid in processes(lambda told: mark in b"\0" + told, "environ"):
        try:
            lines = Path("/proc", str(pid), "maps").read_text().splitlines()
        except OSError:
            continue
        paths = (line.partition(f"{SHARED}/")[2] for line in lines)
        found |= {path.removesuffix(" (deleted)") for path in paths if path}
    return found


class Mapped:
    """Notes, as long as it is entered, what the processes of the runs in `folder` map.

    Of all that only what has a name that begins like one of `kinds`.
    """

    def __init__(self, folder: Path, kinds: tuple[str, ...] = ("",)) -> None:
        self.folder, self.kinds, self.names = folder, kinds, set[str]()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Mapped:
        self._watcher.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            self.names |= {name for name in mapped(self.folder) if name.startswith(self.kinds)}

    def left(self, seconds: float) -> set[str]:
        """Return what is there still, so long after nobody should use it any more."""
        deadline = time.monotonic() + seconds
        while (found := self._there()) and time.monotonic() < deadline:
            time.sleep(INTERVAL)
        return found

    def _there(self) -> set[str]:
        return {name for name in self.names if (SHARED / name).exists()}
