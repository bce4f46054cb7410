"""Which processes there are, as /proc tells it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def processes(wanted: Callable[[bytes], bool], file: str = "cmdline") -> list[int]:
    """Return the numbers of the processes whose `file` in /proc is wanted.

    Those that end meanwhile, and those that are not ours to read, are left out.
    """
    found = []
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        try:
            told = path.read_bytes()
        except OSError:
            continue
        if wanted(told):
            found.append(int(path.parent.name))
    return found
