"""Starts the workers of one host from one process that has imported torch: once, not once for each.

mpiexec starts a client for every worker (`fork_client.py`), which hands over all that it was given,
open files and environment, and waits. This process, the fork server, forks a worker for it; MPI
finds there what it expects. What becomes of the worker becomes of its client, and the other way
round, so that mpiexec sees what it always sees. It is started as

    python -m manyhands.launch.fork_server MODULE FOLDER SOCKET

The workers share the memory that imports have filled, and starting takes less of the processor. The
fork server itself trains nothing, and so has no threads but those of a BLAS, which minds forks.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from manyhands.launch.environment import group_rank
from manyhands.launch.fork_client import MOST_FILES, NUMBER
from manyhands.launch.launcher import end_with_parent

_PR_SET_NAME = 15


class Nursery:
    """Forks workers, and tells each one's stand-in what became of it."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.living: set[int] = set()
        self.lines: dict[int, socket.socket] = {}  # to their stand-ins
        self.failed = False  # whether one of them has
        self.ready = selectors.DefaultSelector()
        self.ready.register(listener, selectors.EVENT_READ)

    def serve(self, count: int) -> Place | None:
        """Fork `count` workers; returns its place in each, None here when all have ended."""
        begun = 0
        with self._alarm() as alarm:
            self.ready.register(alarm, selectors.EVENT_READ)
            while begun < count or self.living:
                for key, _ in self.ready.select():
                    if key.fileobj is alarm:
                        alarm.recv(4096)
                        self._bury()
                    elif key.fileobj is self.listener:
                        begun += 1
                        if place := self._bear():
                            return place
                    elif key.data in self.lines:  # stand-ins say nothing: this one is gone
                        self._leave(key.data)
                        _kill(key.data)
        return None

    def end(self) -> None:
        """End all workers at once."""
        for pid in self.living:
            _kill(pid)

    @contextmanager
    def _alarm(self) -> Iterator[socket.socket]:
        """Give what can be read as soon as a worker has ended."""
        near, far = socket.socketpair()
        far.setblocking(False)
        # Whoever called us may not want to hear of children; we do.
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, signal.SIGTERM))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
        try:
            yield near
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            near.close()
            far.close()

    def _bear(self) -> Place | None:
        """Fork a worker for the next stand-in; returns its place there, None here."""
        line, _ = self.listener.accept()
        place = received(line)
        if place is None:
            line.close()
            return None
        mother = os.getpid()
        with warnings.catch_warnings():  # of threads: a BLAS may have some, and minds its forks
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            end_with_parent(signal.SIGKILL)
            if os.getppid() != mother:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.ready.close()
            for ours in (self.listener, line, *self.lines.values()):
                ours.close()
            return place
        for file in place.files.values():
            os.close(file)
        self.living.add(pid)
        self.lines[pid] = line
        self.ready.register(line, selectors.EVENT_READ, pid)
        with suppress(OSError):  # it is gone, which we shall hear
            line.sendall(NUMBER.pack(pid))
        return None

    def _bury(self) -> None:
        """Tell the stand-ins of those who have ended how they did."""
        while self.living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self.living.discard(pid)
            if status:
                _kill_group(pid)  # whom it started
            if status and not self.failed:  # the launcher does not know the stand-ins' numbers
                self.failed = True
                code = os.waitstatus_to_exitcode(status)
                print(f"PID {pid} ended with {code}", file=sys.stderr, flush=True)
            if pid in self.lines:
                with suppress(OSError):
                    self.lines[pid].sendall(NUMBER.pack(status))
                self._leave(pid)

    def _leave(self, pid: int) -> None:
        line = self.lines.pop(pid)
        self.ready.unregister(line)
        line.close()


def _kill(pid: int) -> None:
    """End a worker, and whom it started, as mpiexec would."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _kill_group(pid)


def _kill_group(pid: int) -> None:
    """End whom a worker started; it leads their group once it has taken its place."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Place(NamedTuple):
    """What a stand-in was given: environment, cores, and open files by their numbers there."""

    environment: dict[str, str]
    cores: list[int]
    files: dict[int, int]

    def take(self) -> None:
        """Be there, with these files under their numbers; nothing of ours may be open any more."""
        os.setsid()  # as under mpiexec: Linux shares out its cores by session
        free = max(self.files, default=0) + 1
        aside = {at: fcntl.fcntl(file, fcntl.F_DUPFD, free) for at, file in self.files.items()}
        for file in self.files.values():
            os.close(file)
        for at, file in aside.items():
            os.dup2(file, at)
            os.close(file)
        os.environ.clear()
        os.environ.update(self.environment)
        os.sched_setaffinity(0, self.cores)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"rank {group_rank()}".encode())


def received(line: socket.socket) -> Place | None:
    """Return what a stand-in hands over; None if it is gone."""
    head, files, _, _ = socket.recv_fds(line, NUMBER.size, MOST_FILES)
    length, content = NUMBER.unpack(head)[0] if len(head) == NUMBER.size else 0, b""
    while more := line.recv(length - len(content)):
        content += more
    if not length or len(content) < length:
        for file in files:
            os.close(file)
        return None
    given = json.loads(content)
    by_number = dict(zip(given["files"], files, strict=True))
    return Place(given["environment"], given["cores"], by_number)


def _let_nothing_else_happen_at_the_end() -> None:
    """Let a worker's process end as soon as what is begun after this, as MPI is, has been ended.

    Taking apart the interpreter, and torch, would copy the memory that is shared.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # not the GNU C library: it takes longer
        libc.on_exit(libc._exit, None)


def _leave() -> NoReturn:
    """End a worker that has done its work: as multiprocessing's do, and files are written out."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in [found for found in gc.get_objects() if issubclass(type(found), io.IOBase)]:
        with suppress(OSError, ValueError):
            file.flush()
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()
    ctypes.PyDLL(None).exit(0)  # C's own: MPICH takes its leave of mpiexec there
    raise AssertionError("exit has returned")


def main(work: str, folder: Path, listener: socket.socket) -> None:
    """Start the workers of the job in `folder`, and be one of them in each.

    `work` is a module: its `PRELOAD` names what all workers import, its `main` is what they do.
    """
    nursery = Nursery(listener)

    def ended(*_: object) -> NoReturn:
        nursery.end()
        os._exit(1)

    signal.signal(signal.SIGTERM, ended)
    gc.disable()  # a tenth of the time of imports is looking for garbage that is not there
    module = importlib.import_module(work)
    for name in module.PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here now is no garbage: looking for it would copy it
    gc.enable()
    mother = os.getpid()
    place = nursery.serve(int(os.environ["MANYHANDS_PROCESSES"]))
    if place is None:
        return
    try:
        place.take()
        np.random.seed()  # NumPy's own was seeded before the fork
        _let_nothing_else_happen_at_the_end()
    except BaseException:  # the others would wait for this one, and mpiexec with them
        traceback.print_exc()
        os.kill(mother, signal.SIGTERM)
        raise
    module.main(folder)
    _leave()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
