"""Forks one host's workers from a process that has imported torch once for all of them.

mpiexec starts a client for every worker (`fork_client.py`). The client sends its open files and
environment, and waits. The fork server forks a worker with this context, in which MPI finds what it
expects. Client and worker end together and in the same way, so that mpiexec sees the client as the
worker. The fork server is started as

    python -m manyhands.launch.fork_server MODULE FOLDER SOCKET

The workers share the memory that imports have filled, and starting takes less CPU time. The
fork server itself does not train: its only threads are those of a BLAS, which supports forks.
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
from manyhands.launch.fork_client import INT64, MOST_FILES
from manyhands.launch.launcher import end_with_parent

_PR_SET_NAME = 15


class ForkServer:
    """Forks workers, and reports each one's exit status to its client."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.workers: set[int] = set()
        self.connections: dict[int, socket.socket] = {}  # to their clients, by pid
        self.failed = False  # whether one of them has
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)

    def serve(self, count: int) -> ClientContext | None:
        """Fork `count` workers; return the context in each, None here once all have ended."""
        begun = 0
        with self._child_exit_socket() as alarm:
            self.selector.register(alarm, selectors.EVENT_READ)
            while begun < count or self.workers:
                for key, _ in self.selector.select():
                    if key.fileobj is alarm:
                        alarm.recv(4096)
                        self._reap_workers()
                    elif key.fileobj is self.listener:
                        begun += 1
                        if context := self._fork_worker():
                            return context
                    elif key.data in self.connections:  # clients send no more: it is gone
                        self._close_connection(key.data)
                        _kill(key.data)
        return None

    def kill_workers(self) -> None:
        """Kill all workers at once."""
        for pid in self.workers:
            _kill(pid)

    @contextmanager
    def _child_exit_socket(self) -> Iterator[socket.socket]:
        """Yield a socket that becomes readable when a worker has ended."""
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

    def _fork_worker(self) -> ClientContext | None:
        """Fork a worker for the next client; return its context there, None here."""
        connection, _ = self.listener.accept()
        context = receive_context(connection)
        if context is None:
            connection.close()
            return None
        parent = os.getpid()
        with warnings.catch_warnings():  # of threads: a BLAS may have some, and minds its forks
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            end_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.selector.close()
            for ours in (self.listener, connection, *self.connections.values()):
                ours.close()
            return context
        for file in context.files.values():
            os.close(file)
        self.workers.add(pid)
        self.connections[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, pid)
        with suppress(OSError):  # it is gone, which we shall hear
            connection.sendall(INT64.pack(pid))
        return None

    def _reap_workers(self) -> None:
        """Reap ended workers, and report each exit status to its client."""
        while self.workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self.workers.discard(pid)
            if status:
                _kill_group(pid)  # whom it started
            if status and not self.failed:  # the launcher does not know the clients' pids
                self.failed = True
                code = os.waitstatus_to_exitcode(status)
                print(f"PID {pid} ended with {code}", file=sys.stderr, flush=True)
            if pid in self.connections:
                with suppress(OSError):
                    self.connections[pid].sendall(INT64.pack(status))
                self._close_connection(pid)

    def _close_connection(self, pid: int) -> None:
        connection = self.connections.pop(pid)
        self.selector.unregister(connection)
        connection.close()


def _kill(pid: int) -> None:
    """Kill a worker and the processes it started, as mpiexec would."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _kill_group(pid)


def _kill_group(pid: int) -> None:
    """Kill the processes that a worker started; the worker leads their process group."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class ClientContext(NamedTuple):
    """What mpiexec gave a client: environment, cores, and open files by descriptor."""

    environment: dict[str, str]
    cores: list[int]
    files: dict[int, int]

    def apply(self) -> None:
        """Adopt session, descriptors, environment and cores; no file of ours may be open."""
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


def receive_context(connection: socket.socket) -> ClientContext | None:
    """Return the context that a client sends; None if the client is gone."""
    head, files, _, _ = socket.recv_fds(connection, INT64.size, MOST_FILES)
    length, content = INT64.unpack(head)[0] if len(head) == INT64.size else 0, b""
    while more := connection.recv(length - len(content)):
        content += more
    if not length or len(content) < length:
        for file in files:
            os.close(file)
        return None
    context = json.loads(content)
    by_number = dict(zip(context["files"], files, strict=True))
    return ClientContext(context["environment"], context["cores"], by_number)


def _skip_interpreter_teardown() -> None:
    """Exit right after MPI's own exit handlers, without tearing down the interpreter.

    Taking apart the interpreter, and torch, would copy the memory that is shared.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # not the GNU C library: it takes longer
        libc.on_exit(libc._exit, None)


def _exit_worker() -> NoReturn:
    """Exit a worker that is done: run exit handlers, flush files, finalize MPI."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in [each for each in gc.get_objects() if issubclass(type(each), io.IOBase)]:
        with suppress(OSError, ValueError):
            file.flush()
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()
    ctypes.PyDLL(None).exit(0)  # C's own: MPICH takes its leave of mpiexec there
    raise AssertionError("exit has returned")


def main(work: str, folder: Path, listener: socket.socket) -> None:
    """Fork the workers of the job in `folder`, and run the job's module in each.

    `work` is a module: its `PRELOAD` names what all workers import, its `main` is what they do.
    """
    server = ForkServer(listener)

    def ended(*_: object) -> NoReturn:
        server.kill_workers()
        os._exit(1)

    signal.signal(signal.SIGTERM, ended)
    gc.disable()  # a tenth of the time of imports is looking for garbage that is not there
    module = importlib.import_module(work)
    for name in module.PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here now is no garbage: looking for it would copy it
    gc.enable()
    parent = os.getpid()
    context = server.serve(int(os.environ["MANYHANDS_PROCESSES"]))
    if context is None:
        return
    try:
        context.apply()
        np.random.seed()  # NumPy's own was seeded before the fork
        _skip_interpreter_teardown()
    except BaseException:  # the others would wait for this one, and mpiexec with them
        traceback.print_exc()
        os.kill(parent, signal.SIGTERM)
        raise
    module.main(folder)
    _exit_worker()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
