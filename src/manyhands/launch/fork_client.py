"""What mpiexec starts in place of a worker: `python -I -S fork_client.py SOCKET`.

See `fork_server.py`.

It runs by itself, without the package and what that imports, so that it is there at once.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys

NUMBER = struct.Struct("!q")  # a length, the worker's process number, how it ended
MOST_FILES = 4
_PASSED_ON = [
    getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2")
]


def main(place: str) -> int:
    """Have a worker made that takes our place; returns its exit code, or ends as it ended."""
    signals: list[int] = []
    bell, ringer = socket.socketpair()
    ringer.setblocking(False)
    signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
    for signum in _PASSED_ON:
        signal.signal(signum, lambda received, _: signals.append(received))
    try:
        line = connected(place)
    except OSError:
        return 1  # the nursery is gone, and has said why
    files = needed_files()
    cores = sorted(os.sched_getaffinity(0))
    given = {"environment": dict(os.environ), "cores": cores, "files": files}
    told = json.dumps(given).encode()
    socket.send_fds(line, [NUMBER.pack(len(told))], files)
    line.sendall(told)
    worker = awaited(line, bell, signals, None)
    if worker is None:
        return 1
    status = awaited(line, bell, signals, worker)
    if status is None:
        return 1
    if os.WIFSIGNALED(status):
        end_by(os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


def awaited(
    line: socket.socket, bell: socket.socket, signals: list[int], worker: int | None
) -> int | None:
    """Return the next number; the signals that come meanwhile reach the worker, if there is one."""
    while True:
        while worker is not None and signals:
            with contextlib.suppress(ProcessLookupError):  # it has just ended: we shall hear how
                os.kill(worker, signals.pop(0))
        ready, _, _ = select.select([line, bell], [], [])
        if line in ready:
            return read(line)
        bell.recv(4096)


def connected(place: str) -> socket.socket:
    """Return a line to the nursery; however long the socket's path, its name here is short."""
    folder = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(f"/proc/self/fd/{folder}/{os.path.basename(place)}")
    os.close(folder)
    return line


def needed_files() -> list[int]:
    """Return the numbers of the files that a worker needs: its streams, and its line to mpiexec.

    MPICH's mpiexec leaves many more open: what it listens on, and its lines to other workers.
    """
    return [0, 1, 2, *(int(os.environ[name]) for name in ("PMI_FD",) if name in os.environ)]


def read(line: socket.socket) -> int | None:
    """Return the next number, None if the nursery is gone."""
    content = b""
    while len(content) < NUMBER.size:
        try:
            more = line.recv(NUMBER.size - len(content))
        except ConnectionError:
            return None
        if not more:
            return None
        content += more
    return int(NUMBER.unpack(content)[0])


def end_by(signum: int) -> None:
    """End by a signal, as the worker did, and leave no second core."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if signum != signal.SIGKILL:
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
