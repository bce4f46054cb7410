"""Runs under mpiexec in place of a worker: `python -I -S fork_client.py SOCKET`.

See `fork_server.py`. It imports only the standard library, so that it starts at once.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys

INT64 = struct.Struct("!q")  # a length, the worker's process number, how it ended
MOST_FILES = 4
_FORWARDED = [
    getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2")
]


def main(path: str) -> int:
    """Request a worker from the fork server; return its exit code, or die by its signal."""
    signals: list[int] = []
    wakeup, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for signum in _FORWARDED:
        signal.signal(signum, lambda received, _: signals.append(received))
    try:
        connection = connect(path)
    except OSError:
        return 1  # the fork server is gone, and has said why
    files = needed_files()
    cores = sorted(os.sched_getaffinity(0))
    context = {"environment": dict(os.environ), "cores": cores, "files": files}
    message = json.dumps(context).encode()
    socket.send_fds(connection, [INT64.pack(len(message))], files)
    connection.sendall(message)
    worker = read_while_forwarding(connection, wakeup, signals, None)
    if worker is None:
        return 1
    status = read_while_forwarding(connection, wakeup, signals, worker)
    if status is None:
        return 1
    if os.WIFSIGNALED(status):
        die_by_signal(os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


def read_while_forwarding(
    connection: socket.socket, wakeup: socket.socket, signals: list[int], worker: int | None
) -> int | None:
    """Return the next number; meanwhile forward received signals to the worker, if any."""
    while True:
        while worker is not None and signals:
            with contextlib.suppress(ProcessLookupError):  # it has just ended: we shall hear how
                os.kill(worker, signals.pop(0))
        ready, _, _ = select.select([connection, wakeup], [], [])
        if connection in ready:
            return read_number(connection)
        wakeup.recv(4096)


def connect(path: str) -> socket.socket:
    """Connect to the fork server, also where the socket's path is longer than allowed."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    os.close(folder)
    return connection


def needed_files() -> list[int]:
    """Return the file descriptors that a worker needs: its streams, and mpiexec's.

    MPICH's mpiexec leaves many more open: what it listens on, and its lines to other workers.
    """
    return [0, 1, 2, *(int(os.environ[name]) for name in ("PMI_FD",) if name in os.environ)]


def read_number(connection: socket.socket) -> int | None:
    """Return the next number, None if the fork server is gone."""
    content = b""
    while len(content) < INT64.size:
        try:
            more = connection.recv(INT64.size - len(content))
        except ConnectionError:
            return None
        if not more:
            return None
        content += more
    return int(INT64.unpack(content)[0])


def die_by_signal(signum: int) -> None:
    """Die by the signal that ended the worker, without a second core dump."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if signum != signal.SIGKILL:
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
