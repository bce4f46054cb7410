"""Measures free memory and disk space, to refuse data that does not fit before it is read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from manyhands.errors import DataError

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
# Of a control group: its limit, what is used of it, and where version 1 has its folders.
_VERSIONS = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory"),
)


def check_memory(needed: int, what: str) -> None:
    """Refuse to read `what` if it needs more memory than is available.

    Raises:
        DataError: With both numbers.
    """
    free = free_memory()
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


def free_memory() -> int | None:
    """Return the bytes that this process can still allocate; None if unknown."""
    return min([*_system_memory(), *_cgroup_memory()], default=None)


def whole_memory() -> int | None:
    """Return all memory and swap space that processes here can have; None if unknown."""
    known: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            known[line.partition(":")[0]] = int(line.split()[1]) * 1024
    swap = known.get("SwapTotal", 0)
    limits = [limit + swap for _, limit in _limits()]
    return min(
        [*([known["MemTotal"] + swap] if "MemTotal" in known else []), *limits], default=None
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


def _system_memory() -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _cgroup_memory() -> Iterator[int]:
    """Yield the free memory of each control group of this process, such as a container's."""
    for used, limit in _limits():
        with suppress(OSError, ValueError):
            yield limit - int(used.read_text()) + _cached(used.parent)


def _limits() -> Iterator[tuple[Path, int]]:
    """Yield each control group's limit, and the file with its usage."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for limit, used, base in _VERSIONS:
            if (base or "") not in controllers.split(","):
                continue
            root = _CGROUPS / base
            for folder in (root / path.lstrip("/"), *(root / path.lstrip("/")).parents):
                with suppress(OSError, ValueError):  # "max": no limit
                    yield folder / used, int((folder / limit).read_text())
                if folder == root:
                    break


def _cached(folder: Path) -> int:
    """Return the bytes of files that a control group keeps in memory, and gives back first."""
    fields = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(value) for name, value in fields if name in ("active_file", "inactive_file"))
