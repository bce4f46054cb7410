"""What mpiexec starts in a worker's place: `python -I -S standin.py SOCKET`; see `nursery.py`.

It runs by itself, without the package and what that imports, so that it is there at once.
"""

import json
import os
import signal
import socket
import stat
import struct
import sys

NUMBER = struct.Struct("!q")  # a length, the worker's process number, how it ended
MOST_FILES = 250  # the kernel passes on 253 at once
_PASSED_ON = [
    getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2")
]


def main(place: str) -> int:
    """Have a worker made that takes our place; returns its exit code, or ends as it ended."""
    try:
        line = connected(place)
    except OSError:
        return 1  # the nursery is gone, and has said why
    content = json.dumps({"environment": dict(os.environ), "files": (files := open_files(line))})
    told = content.encode()
    socket.send_fds(line, [NUMBER.pack(len(told))], files)
    line.sendall(told)
    worker = read(line)
    if worker is None:
        return 1
    for signum in _PASSED_ON:
        signal.signal(signum, lambda received, _: os.kill(worker, received))
    status = read(line)
    if status is None:
        return 1
    if os.WIFSIGNALED(status):
        end_by(os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


def connected(place: str) -> socket.socket:
    """Return a line to the nursery; however long the socket's path, its name here is short."""
    folder = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(f"/proc/self/fd/{folder}/{os.path.basename(place)}")
    os.close(folder)
    return line


def open_files(line: socket.socket) -> list[int]:
    """Return the numbers of the files that we were started with, but those to listen on."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            kind = os.fstat(number).st_mode
        except OSError:  # the folder that was just read
            continue
        if number != line.fileno() and not (stat.S_ISSOCK(kind) and listens(number)):
            found.append(number)
    return sorted(found)[:MOST_FILES]


def listens(number: int) -> bool:
    """Say whether others can connect to a socket: mpiexec's own, which is no worker's business."""
    with socket.socket(fileno=os.dup(number)) as copy:
        return bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


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
