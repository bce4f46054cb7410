"""Checks this machine's shared memory, open files, disk space and memory.

`check_…` refuse a start that would fail for lack of one; `explain_shortage` turns a failure into
an error that names the resource, how much is left, and the remedy.
"""

from __future__ import annotations

import errno
import math
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from manyhands.errors import (
    LateSignalError,
    LaunchError,
    ManyhandsError,
    ResourceError,
    StoppedError,
)

SHARED = Path("/dev/shm")
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
# Of a control group: its limit, what is used of it, and where version 1 has its folders.
_VERSIONS = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory"),
)
LEAST_SPACE = 2**20  # bytes for the records of the shortest run
SHARED_PER_WORKER = 8 << 20  # bytes: MPI's own and one all-reduce window, measured with MPICH 5
MEMORY_PER_WORKER = 256 << 20  # bytes: Python, PyTorch and a small model, measured
_ELSEWHERE = "another folder (TMPDIR is the one for temporary files)"
_MORE_SHARED = "enlarge it (docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm)"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What torch and NumPy say where they keep no error number.
_NO_SPACE = re.compile(r"No space left on device|^\d+ requested and \d+ written$")
_NO_FILES = re.compile(r"Too many open files")
_NO_MEMORY = re.compile(r"[Cc]an(?:no|')t allocate memory")
_BUS_ERROR = re.compile(r"Bus error|ended with -7\b|signal 7\b")


def size_text(count: float) -> str:
    """Return a number of bytes in MiB.

    >>> size_text(3 << 20), size_text(100 << 10)
    ('3 MiB', '0.1 MiB')
    """
    mebi = count / 2**20
    return f"{mebi:,.0f} MiB" if mebi >= 10 or mebi == int(mebi) else f"{mebi:.1f} MiB"


def free_shared_memory(*, in_all: bool = False) -> float:
    """Return the free bytes of shared memory, or all `in_all`; infinite if unknown."""
    try:
        usage = shutil.disk_usage(SHARED)
    except OSError:  # this system shares memory otherwise
        return math.inf
    return usage.total if in_all else usage.free


def check_shared_memory(need: float, what: str, *, in_all: bool = False) -> None:
    """Refuse to start with less than `need` bytes of free shared memory.

    With `in_all` what is in use counts as free: the processes of the same group may have it.
    """
    if (free := free_shared_memory(in_all=in_all)) < need:
        raise LaunchError(shared_shortage(free, need, what))


def shared_shortage(free: float, need: float, what: str, instead: str = "") -> str:
    """Return the message for too little shared memory."""
    more = f"{_MORE_SHARED}, or {instead}" if instead else _MORE_SHARED
    return f"{SHARED} has {size_text(free)} free, but {what} needs {size_text(need)}; {more}"


def files_needed(processes: int) -> int:
    """Return how many open files a process of a run may need; measured."""
    return 40 + 3 * processes


def check_open_files(processes: int) -> None:
    """Refuse to start where the launcher or a worker would run out of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < (need := files_needed(processes)):
        raise LaunchError(
            f"a process may keep {soft} files open here, but a run of {processes} processes needs "
            f"{need}; raise the limit: ulimit -n 1024"
        )


def check_disk_space(folder: Path, need: float, what: str, instead: str = _ELSEWHERE) -> None:
    """Refuse to write `need` bytes to a folder without enough disk space."""
    place = _nearest_existing(folder)
    with suppress(OSError):
        free = shutil.disk_usage(place).free
        if free < need:
            raise LaunchError(
                f"{place} has {size_text(free)} free, but {what} needs {size_text(need)}; free "
                f"some space there, or choose {instead}"
            )


def free_memory() -> int | None:
    """Return the bytes that this process can still allocate; None if unknown."""
    known = _system_memory()
    available = [known["MemAvailable"]] if "MemAvailable" in known else []
    return min([*available, *_cgroup_memory()], default=None)


def whole_memory() -> int | None:
    """Return all memory and swap space that processes here can have; None if unknown."""
    known = _system_memory()
    limits = [*([known["MemTotal"]] if "MemTotal" in known else []), *(n for _, n in _limits())]
    return min(limits) + known.get("SwapTotal", 0) if limits else None


def _memory_left() -> str:
    free = free_memory()
    return "an unknown amount" if free is None else size_text(free)


def memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory so far."""
    with suppress(OSError):
        for line in (_PROC / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


@contextmanager
def explain_shortage(**folders: Path | str) -> Iterator[None]:
    """Turn errors inside that lack of a resource caused into a ResourceError.

    Args:
        **folders: Where files are written, by the option that chooses the folder.

    Raises:
        ResourceError: It names the resource, what is left of it, and what to do.
    """
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        if text := shortage(error, {name: Path(folder) for name, folder in folders.items()}):
            raise ResourceError(text) from error
        raise


@contextmanager
def explain_removed(*folders: Path) -> Iterator[None]:
    """Turn errors inside into a ResourceError where one of these folders has been removed.

    A request to stop stays what it is.

    Raises:
        ResourceError: It names the folder, and what to do.
    """
    there = [folder for folder in folders if folder.exists()]
    try:
        yield
    except (StoppedError, LateSignalError):
        raise
    except (OSError, ManyhandsError) as error:
        if gone := [str(folder) for folder in there if not folder.exists()]:
            raise ResourceError(
                f"{' and '.join(gone)} has been removed while the run used it; start the run "
                "again, and keep its output folder and its folder in TMPDIR until it ends"
            ) from error
        raise


def shortage(error: BaseException, folders: dict[str, Path]) -> str | None:
    """Return which resource an error lacked, and the remedy; None for other errors."""
    number, text = getattr(error, "errno", None), str(error).partition("\n")[0]
    if isinstance(error, RuntimeError) and "shared memory" in text and _NO_SPACE.search(text):
        return f"{text}; {SHARED} has {size_text(free_shared_memory())} free: {_MORE_SHARED}"
    if number in (errno.EMFILE, errno.ENFILE) or _NO_FILES.search(text):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"{text}: this process may keep {soft}; raise the limit: ulimit -n 1024"
    if number in _FULL or (isinstance(error, OSError) and _NO_SPACE.search(text)):
        return f"{text}{_full_folders(error, folders)}"
    if isinstance(error, MemoryError) or number == errno.ENOMEM or _NO_MEMORY.search(text):
        return (
            f"{text or 'out of memory'}; {_memory_left()} of memory are left: use fewer "
            "workers, a smaller batch or model, or a machine with more memory"
        )
    return None


def _full_folders(error: BaseException, folders: dict[str, Path]) -> str:
    """Return the full folders and the remedy; all folders if none looks full."""
    if isinstance(name := getattr(error, "filename", None), str):
        folders = {"": Path(name).parent, **folders}
    free = {}
    for option, folder in folders.items():
        with suppress(OSError):
            free[option] = shutil.disk_usage(_nearest_existing(folder)).free
    full = [option for option in free if free[option] < LEAST_SPACE] or list(free)
    if getattr(error, "errno", None) == errno.EFBIG:
        listed = ", ".join(str(folders[option]) for option in full)
        return f" in {listed}: raise the limit on the size of files (ulimit -f unlimited)"
    places = [f"{folders[option]} has {size_text(free[option])} free" for option in full]
    named = " or ".join(dict.fromkeys(option for option in full if option))
    other = f"set {named} to another folder" if named else "use another folder"
    return f": {', '.join(places) or 'the disk is full'}; free some space, or {other}"


def crash_cause(message: str, code: int, kills: int | None) -> str:
    """Return the resource whose lack killed a process, if the signs are clear.

    Args:
        message: What mpiexec wrote.
        code: The exit code of the group.
        kills: `memory_kills()` from before the group started; None where it was not counted.
    """
    if kills is not None and memory_kills() > kills:
        return (
            "; the kernel has killed a process for lack of memory meanwhile, and "
            f"{_memory_left()} are left now: use fewer workers, a smaller batch or "
            "model, or a machine with more memory"
        )
    if code in (7, -7, 135) or _BUS_ERROR.search(message):
        return (
            f"; a bus error: the memory that processes share ran out, {SHARED} has "
            f"{size_text(free_shared_memory())} free: {_MORE_SHARED}"
        )
    return ""


def temporary_folder() -> Path:
    """Return the folder for this process's temporary files."""
    return Path(tempfile.gettempdir())


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above that exists."""
    folder = folder.absolute()
    return next((each for each in (folder, *folder.parents) if os.path.isdir(each)), Path("/"))


def _system_memory() -> dict[str, int]:
    """Return the bytes that the system states, by name; empty where it states nothing."""
    known: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            known[line.partition(":")[0]] = int(line.split()[1]) * 1024
    return known


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
