"""Refuses data that does not fit into memory, before it is read."""

from __future__ import annotations

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


def format_bytes(count: int) -> str:
    """Return a number of bytes for people.

    >>> format_bytes(512), format_bytes(5_800_000), format_bytes(5_900_000_000)
    ('512 B', '5.8 MB', '5.9 GB')
    """
    units = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
    return next(
        (f"{count / unit:.1f} {name}" for unit, name in units if count >= unit), f"{count} B"
    )
