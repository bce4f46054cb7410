"""What MPI and CUDA leave in shared memory when processes are killed, and how it is cleared away.

A launcher clears after its workers. When it is killed itself nobody would: so for as long as its
workers run it holds a `janitor`, a small process that runs this very file and imports nothing else.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED = "/dev/shm/"
_NAMES = ("mpich_shm_", "mpich_shar_tmp", "sm_segment", "osc_", "ucx_shm", "sem.mp-")
# What other MPIs' begin with: theirs only where a worker of ours has mapped it.
_OTHERS = ("Intel_MPI", "vader_segment", "psm_shm", "psm2_shm", "psm3_shm", "mv2", "cray-", "nccl-")
# How torch and CUDA name what a process shares a GPU's memory by: with its number.
_OF_ONE = re.compile(r"torch_(?P<pid>\d+)_|cuda\.shm\.[0-9a-f]+\.(?P<hex>[0-9a-f]+)\.")
_PATIENCE, _LOOK = 8.0, 0.25  # seconds for workers to go after their launcher; between two looks


def listed() -> list[str]:
    """Return what is in shared memory."""
    try:
        return [entry.path for entry in os.scandir(SHARED)]
    except OSError:
        return []


def abandoned(before: Iterable[str]) -> set[str]:
    """Return what is new since, MPI's or a GPU's, ours, and in nobody's use."""
    new = {path for path in set(listed()) - set(before) if _is_mpi(path) or _is_of_the_dead(path)}
    for pause in (0.0, _LOOK):  # one that was just made may be mapped a moment later
        if new:
            time.sleep(pause)
            used = _mapped()
            new = {path for path in new if _inode(path) not in used}
    return new


def clear(paths: Iterable[str]) -> None:
    """Unlink them, as far as they are there."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


@contextmanager
def janitor() -> Iterator[None]:
    """Have someone who clears shared memory away if this process is killed meanwhile."""
    if not os.path.isdir(SHARED):
        yield
        return
    with subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(listed()).encode() + b"\n")
            process.stdin.flush()
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                process.stdin.write(b"done\n")
                process.stdin.close()


def _main() -> None:
    before = json.loads(sys.stdin.readline())
    if sys.stdin.readline():
        return  # the launcher is done, and has cleared away itself
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        time.sleep(_LOOK)
        clear(abandoned(before))


def _mapped() -> set[int]:
    """Return every file in shared memory that some process of this host has mapped, by inode.

    Not by name: a semaphore is mapped under the name it had before it got its own.
    """
    inodes = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                lines = Path(entry.path, "maps").read_text().splitlines()
                inodes |= {int(line.split()[4]) for line in lines if SHARED in line}
    return inodes


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def named(path: str) -> bool:
    """Say whether what a worker has mapped is named as an MPI's is, or a GPU's; else a user's."""
    name = path.removeprefix(SHARED)
    return name.startswith((*_NAMES, *_OTHERS)) or _OF_ONE.match(name) is not None


def _is_mpi(path: str) -> bool:
    """Say whether a segment of ours is named as MPICH's and Open MPI's are."""
    name = path.removeprefix(SHARED)
    with suppress(OSError):
        return name.startswith(_NAMES) and os.stat(path).st_uid == os.getuid()
    return False


def _is_of_the_dead(path: str) -> bool:
    """Say whether a segment is one by which processes share a GPU's memory, and its maker gone."""
    found = _OF_ONE.match(path.removeprefix(SHARED))
    if not found:
        return False
    pid = int(found["pid"]) if found["pid"] else int(found["hex"], 16)
    with suppress(OSError):
        return not os.path.exists(f"/proc/{pid}") and os.stat(path).st_uid == os.getuid()
    return False


if __name__ == "__main__":
    _main()
