"""Refuses data that does not fit into memory or on the disk, before it is read."""

from __future__ import annotations

import shutil
from pathlib import Path

from manyhands.errors import DataError
from manyhands.launch import resources


def check_memory(needed: int, what: str) -> None:
    """Refuse to read `what` if it needs more memory than is available.

    Raises:
        DataError: With both numbers.
    """
    free = resources.free_memory()
    if free is not None and needed > free:
        raise DataError(
            f"{what} takes {format_bytes(needed)} of memory, but {format_bytes(free)} is "
            "available; use a larger machine or fewer examples, or stream shards (`manyhands "
            "prepare`, --stream)"
        )


def check_disk(needed: int, folder: Path, what: str) -> None:
    """Refuse to copy `what` into a folder without enough disk space.

    Raises:
        DataError: With both numbers and the folder.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise DataError(
            f"{what} takes {format_bytes(needed)} in {there}, which has "
            f"{format_bytes(free)} free; make room, or set TMPDIR to a larger disk"
        )


def format_bytes(count: int) -> str:
    """Return a number of bytes for people.

    >>> format_bytes(512), format_bytes(5_800_000), format_bytes(5_900_000_000)
    ('512 B', '5.8 MB', '5.9 GB')
    """
    units = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
    return next(
        (f"{count / unit:.1f} {name}" for unit, name in units if count >= unit), f"{count} B"
    )
