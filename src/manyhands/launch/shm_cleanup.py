"""Removes what killed processes leave in shared memory and in private folders.

A launcher cleans up after its workers. In case it is killed itself, it starts a `CleanupProcess`, a
small process that runs this very file and imports nothing else.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

SHARED = "/dev/shm/"
_NAMES = ("mpich_shm_", "mpich_shar_tmp", "sm_segment", "osc_", "ucx_shm", "sem.mp-")
# What other MPIs' begin with: theirs only where a worker of ours has mapped it.
_OTHERS = ("Intel_MPI", "vader_segment", "psm_shm", "psm2_shm", "psm3_shm", "mv2", "cray-", "nccl-")
# How torch and CUDA name what a process shares a GPU's memory by: with its number.
_GPU_SEGMENT = re.compile(r"torch_(?P<pid>\d+)_|cuda\.shm\.[0-9a-f]+\.(?P<hex>[0-9a-f]+)\.")
# What MPIs call the processes that start ours.
_STARTERS = (b"hydra_", b"mpiexec", b"prte", b"orte")
_MULTIPROCESSING = b"from multiprocessing."  # what its fork server and resource tracker run
_HELD = "held"  # a named pipe in a private folder: whoever has it open keeps the folder
_PATIENCE, _LOOK = 8.0, 0.25  # seconds for workers to go after their launcher; between two looks
_YOUNG = 60.0  # seconds in which a private folder may not be held yet
_CLEANING, _SOON = 2.0, 0.01  # seconds for a resource tracker to end; between two looks at helpers


def list_segments() -> list[str]:
    """Return the files in shared memory."""
    try:
        return [entry.path for entry in os.scandir(SHARED)]
    except OSError:
        return []


def abandoned_segments(before: Iterable[str]) -> set[str]:
    """Return this user's new MPI and GPU segments that no process uses."""
    new = {
        path
        for path in set(list_segments()) - set(before)
        if _is_mpi(path) or _is_orphaned_gpu_segment(path)
    }
    for pause in (0.0, _LOOK):  # one that was just made may be mapped a moment later
        if new:
            time.sleep(pause)
            used = _mapped_inodes()
            new = {path for path in new if _inode(path) not in used}
    return new


def unlink(paths: Iterable[str]) -> None:
    """Unlink these files, if they exist."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


class CleanupProcess:
    """A small process that removes shared memory and one folder if this process is killed.

    Args:
        folder: A private folder to remove once no process holds it any more (`hold_folder`).
    """

    def __init__(self, folder: Path) -> None:
        reading, self._channel = _channel(folder)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(reading)
        plan = {"before": list_segments(), "folder": str(folder)}
        self._write(json.dumps(plan).encode() + b"\n")

    def dismiss(self) -> None:
        """End it: everything is cleaned up."""
        self._write(b"done\n")
        self.release()
        self._process.wait()

    def release(self) -> None:
        """Detach it: it cleans up once no process holds the folder."""
        os.close(self._channel)
        _released.append(self._process)

    def _write(self, content: bytes) -> None:
        with suppress(BrokenPipeError):
            while content:
                content = content[os.write(self._channel, content) :]


_released: list[subprocess.Popen[bytes]] = []  # so that none is collected while it runs


def hold_folder(folder: Path) -> Callable[[], None]:
    """Keep another process's private folder until this process ends or calls the result."""
    channel = os.open(folder / _HELD, os.O_WRONLY)
    return lambda: os.close(channel)


def is_abandoned(folder: Path) -> bool:
    """Return whether no process of this kernel holds a private folder, and none will remove it."""
    pipe = folder / _HELD
    if time.time() - pipe.stat().st_mtime < _YOUNG:
        return False
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return False  # a cleanup process reads it
    except OSError as error:
        if error.errno != errno.ENXIO:
            return False
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(reading, 1) == b""  # the end, where no process has it open for writing
    except BlockingIOError:
        return False
    finally:
        os.close(reading)


def _channel(folder: Path) -> tuple[int, int]:
    """Return a pipe's read and write ends; other processes find the pipe in `folder`."""
    try:
        os.mkfifo(folder / _HELD, 0o600)
    except OSError:  # the file system has no named pipes
        return os.pipe()
    reading = os.open(folder / _HELD, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    return reading, os.open(folder / _HELD, os.O_WRONLY)


def remove_folder(folder: Path) -> None:
    """Remove a private folder, also one that was renamed for removal."""
    for path in _existing(folder):
        shutil.rmtree(path, ignore_errors=True)


def _existing(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.parent.glob(f"{folder.name}-*")) if path.exists()]


def kill_helpers(folder: Path, session: int) -> None:
    """Kill the helpers that a group has left, and return when none is alive.

    A stopped helper of mpiexec ends by nothing else; multiprocessing's fork server notices its
    parent's end only after its imports. The resource tracker ends by itself after the others, and
    cleans up then: it is killed only if it does not.

    Args:
        folder: The TMPDIR that they were given, which is that of one run alone.
        session: The session in which the group was started.
    """
    deadline, end = time.monotonic() + _CLEANING, time.monotonic() + _PATIENCE
    while (left := _helpers(folder, session)) and time.monotonic() < end:
        for pid, tracks in left.items():
            if not tracks or time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_SOON)


def _helpers(folder: Path, session: int) -> dict[int, bool]:
    """Return a group's living helpers: pid → whether it is a resource tracker."""
    variable = b"\0TMPDIR=" + os.fsencode(folder) + b"\0"
    helpers = {}
    for entry in os.scandir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.name.isdigit():
            with suppress(OSError):
                place, pid = Path(entry.path), int(entry.name)
                name, line = (
                    place.joinpath("comm").read_bytes(),
                    place.joinpath("cmdline").read_bytes(),
                )
                helper = name.startswith(_STARTERS) or b"/manyhands/launch/fork_client.py" in line
                helper = helper or (_MULTIPROCESSING in line and os.getsid(pid) == session)
                if helper and variable in b"\0" + place.joinpath("environ").read_bytes() + b"\0":
                    helpers[pid] = b".resource_tracker" in line
    return helpers


def _main() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # scancel sends it to all; we go after the others
    plan = json.loads(sys.stdin.readline())
    folder = Path(plan["folder"])
    if sys.stdin.readline() or not _existing(folder):
        return  # whoever made it has cleaned up
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        remove_folder(folder)
        time.sleep(_LOOK)
        unlink(abandoned_segments(plan["before"]))


def _mapped_inodes() -> set[int]:
    """Return the inodes of all shared-memory files that processes of this host have mapped.

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


def is_mpi_or_gpu_name(path: str) -> bool:
    """Return whether a segment has the name of an MPI's or a GPU's, not of a user's."""
    name = path.removeprefix(SHARED)
    return name.startswith((*_NAMES, *_OTHERS)) or _GPU_SEGMENT.match(name) is not None


def _is_mpi(path: str) -> bool:
    """Return whether a segment is this user's and named as MPICH's or Open MPI's are."""
    name = path.removeprefix(SHARED)
    with suppress(OSError):
        return name.startswith(_NAMES) and os.stat(path).st_uid == os.getuid()
    return False


def _is_orphaned_gpu_segment(path: str) -> bool:
    """Return whether a segment shares GPU memory of a process that is gone."""
    match = _GPU_SEGMENT.match(path.removeprefix(SHARED))
    if not match:
        return False
    pid = int(match["pid"]) if match["pid"] else int(match["hex"], 16)
    with suppress(OSError):
        return not os.path.exists(f"/proc/{pid}") and os.stat(path).st_uid == os.getuid()
    return False


if __name__ == "__main__":
    _main()
