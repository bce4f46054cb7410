"""A lock file in a folder, so that only one run at a time writes there.

    FOLDER/.lock    {"host": "node3", "boot": "…", "namespace": "pid:[…]", "pid": 4711,
                     "started": 883211, "token": "…", "members": [[4712, 883215]], "job": "/tmp/…"}

The file is made exclusively (O_EXCL), which also works on network file systems that have no flock.
A lock whose processes have ended is taken over. Whether a process runs can only be checked under
the same kernel and in the same process namespace; elsewhere the lock is respected, and the error
says how to remove it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import stat
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from manyhands.errors import ConfigError
from manyhands.launch.host import hostname, kernel_id
from manyhands.launch.process_group_spec import WORKERS

NAME = ".lock"
_WRITTEN = 2.0  # seconds in which the content of a new lock file must appear
_LEAVING = 20.0  # seconds for the workers of a killed launcher to end
_POLL = 0.05
# What the command lines of workers contain; their environment names the job.
_WORKERS = (*WORKERS, b"multiprocessing")


class Member(NamedTuple):
    """One process: its kernel, its pid namespace, its pid, and when it started."""

    boot: str
    namespace: str
    pid: int
    started: int | None

    @classmethod
    def here(cls) -> Member:
        """Return this process."""
        return cls(kernel_id(), _namespace(), os.getpid(), _start_time(os.getpid()))


@dataclass(frozen=True)
class Holder:
    """The processes that hold a lock.

    Attributes:
        host: Name of the host, for messages.
        boot: Identifies the running kernel.
        namespace: Identifies the process namespace, which containers have of their own.
        pid: Number of the process that made the lock.
        started: When that process started, in clock ticks since boot; None where unknown.
        token: Differs for every lock.
        members: Other processes of the same run in this namespace.
        job: The private folder of the run; the TMPDIR of its workers is inside.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int | None
    token: str
    members: tuple[tuple[int, int | None], ...] = ()
    job: str = ""

    @classmethod
    def here(cls, members: Iterable[Member] = (), job: str = "") -> Holder:
        """Return a holder for this process, with the `members` that it can check."""
        mine = Member.here()
        near = tuple((m.pid, m.started) for m in members if m[:2] == mine[:2] and m != mine)
        return cls(hostname(), *mine, uuid.uuid4().hex, near, job)

    def running(self) -> int | None:
        """Return the pid of a process that still runs, or None; only where it can be checked."""
        for pid, began in ((self.pid, self.started), *self.members):
            if _is_running(pid, began):
                return pid
        return next(iter(_workers(self.job)), None) if self.job else None


@dataclass(frozen=True)
class Lock:
    """A held lock; `inherited` tells that a killed run had left its lock file there."""

    folder: Path
    token: str
    inherited: bool = False

    def release(self) -> None:
        """Remove the lock file, if it is still this one. Any process of the run may do it."""
        with suppress(OSError):
            holder = _read(self.folder / NAME)
            if holder and holder.token == self.token:
                (self.folder / NAME).unlink()


def acquire(folder: Path, what: str, *, members: Iterable[Member] = (), job: str = "") -> Lock:
    """Lock a folder for this process.

    Args:
        folder: It must exist.
        what: What the message of the error begins with, such as "output is 'x', which".
        members: What `member` returned in the other processes of the run.
        job: The private folder of a run that starts its own workers.

    Raises:
        ConfigError: Another run holds the lock.
        OSError: The folder cannot be written.
    """
    mine, path, inherited = Holder.here(members, job), folder / NAME, False
    while not _create(path, mine):
        if other := ended_holder(folder, what):
            _remove(path, other)
            inherited = True
    return Lock(folder, mine.token, inherited)


def ended_holder(folder: Path, what: str) -> Holder | None:
    """Return the holder of a lock whose run has ended; None without a lock.

    Workers of a launcher that was killed are given some time to end.

    Raises:
        ConfigError: The run has not ended, or this cannot be checked from here.
    """
    path = folder / NAME
    try:
        holder = _read(path)
    except (OSError, ValueError, TypeError, KeyError):
        raise ConfigError(
            f"{what} has a lock that cannot be read. If no run uses the folder, remove it: "
            f"rm {shlex.quote(str(path))}"
        ) from None
    if holder is None:
        return None
    in_use = f"{what} is in use by process {{}} on {holder.host}"
    if why := _unreachable(holder):
        raise ConfigError(
            f"{in_use.format(holder.pid)}. Whether that process still runs cannot be checked from "
            f"{hostname()}: {why}. If it has ended, remove its lock: rm {shlex.quote(str(path))}"
        )
    deadline = time.monotonic() + _LEAVING
    while (pid := holder.running()) is not None:
        killed = not _is_running(holder.pid, holder.started)
        if not killed or time.monotonic() > deadline:
            own = " (this process)" if pid == os.getpid() else ""
            raise ConfigError(
                f"{in_use.format(pid)}{own}; wait until it has ended, or choose another folder"
            )
        time.sleep(_POLL)
    return holder


def _unreachable(holder: Holder) -> str:
    """Return why the holder's processes cannot be checked from here; empty if they can."""
    if holder.boot != kernel_id():
        same = holder.host == hostname()
        return "it has restarted since, or is another host of that name" if same else "another host"
    return "" if holder.namespace == _namespace() else "another container"


def _create(path: Path, holder: Holder) -> bool:
    """Make the lock file; return False if it exists."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        content = json.dumps(asdict(holder)).encode()
        if os.write(file, content) != len(content):
            raise OSError(28, "No space left on device")
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return True


def _remove(path: Path, holder: Holder) -> None:
    """Remove the lock of a run that has ended, unless another process was faster.

    Only processes of the holder's host get here, so flock, where there is one, decides among them.
    """
    with suppress(FileNotFoundError):
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file), path.lstat()) and _read(path) == holder:
                path.unlink()
        finally:
            os.close(file)


def _read(path: Path) -> Holder | None:
    """Return the content of a lock file; None without one."""
    deadline = time.monotonic() + _WRITTEN
    while True:
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise ValueError("not a regular file")
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if content or time.monotonic() > deadline:
            break
        time.sleep(_POLL)
    known = json.loads(content)
    members = tuple((pid, began) for pid, began in known.pop("members"))
    return Holder(**known, members=members)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _is_running(pid: int, started: int | None) -> bool:
    """Return whether a process runs; another process may have its pid by now."""
    with suppress(OSError):
        state, began = _stat(pid)
        return state not in ("Z", "X") and started in (None, began)
    try:  # no /proc, or one that hides the processes of other users
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _start_time(pid: int) -> int | None:
    try:
        return _stat(pid)[1]
    except OSError:
        return None


def _stat(pid: int) -> tuple[str, int]:
    """Return the state of a process and when it started, in clock ticks since boot."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _workers(job: str) -> list[int]:
    """Return the workers on this host whose launcher had `job` as its private folder."""
    mark = b"\0TMPDIR=" + os.fsencode(job) + b"/"
    pids = []
    for entry in os.scandir("/proc") if os.path.isdir("/proc") else ():
        if entry.name.isdigit():
            with suppress(OSError):
                inherits = mark in b"\0" + Path(entry.path, "environ").read_bytes()
                line = Path(entry.path, "cmdline").read_bytes() if inherits else b""
                if any(name in line for name in _WORKERS):
                    pids.append(int(entry.name))
    return pids
