"""Starts workers that share one host's memory.

Run as `python -m manyhands.training.process.shared_memory_main FOLDER`.

The workers come from a fork server, which imports torch once, runs nothing and so has no threads: a
start is quick, and safe where forking this process would not be.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from manyhands.launch.failures import report_failure
from manyhands.launch.launcher import end_with_parent
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.launch.worker_log import redirect_output
from manyhands.training.job import Job

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from manyhands.comm import Communicator

LOCK_FILE = "lock"
_LONGEST = 60  # bytes of a temporary folder's name in which multiprocessing can have its sockets


def _start_fork_server(folder: Path) -> None:
    """Start multiprocessing's fork server in a private folder; its children leave that again.

    It looks for modules in its working folder first, even for those of the standard library.
    """
    before = os.getcwd()
    os.chdir(folder)
    try:
        forkserver.ensure_running()
    finally:
        os.chdir(before)


def main(folder: Path) -> int:
    """Start the workers of the job in `folder`; return the exit code of the first to fail."""
    size = int(os.environ["MANYHANDS_PROCESSES"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that we end our workers on the way
    (folder / LOCK_FILE).touch()
    _shorten_sockets()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "manyhands.training.process.shared_memory_main",
            "manyhands.training.process.worker_main",
            "manyhands.comm.memory",
        ]
    )
    _start_fork_server(folder)
    pipes = [context.Pipe() for _ in range(1, size)]
    ends: list[Any] = [[near for near, _ in pipes], *([far] for _, far in pipes)]
    crew = [
        context.Process(target=worker_process, args=(folder, rank, ends[rank], size), daemon=True)
        for rank in range(size)
    ]
    try:
        for process in crew:
            process.start()
        for near, far in pipes:  # each worker has its own now: one that dies is noticed
            near.close()
            far.close()
        return _wait_for_workers(crew)
    finally:
        _end_workers(crew)


def _shorten_sockets() -> None:
    """Put multiprocessing's sockets into /tmp where their names would be too long."""
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST and os.access("/tmp", os.W_OK):
        tempfile.tempdir = "/tmp"


def _wait_for_workers(crew: Sequence[BaseProcess]) -> int:
    """Wait until all workers have ended, or one has failed."""
    running = list(crew)
    while running:
        multiprocessing.connection.wait([p.sentinel for p in running])
        for process in running:
            if process.exitcode:
                print(
                    f"PID {process.pid} ended with {process.exitcode}", file=sys.stderr, flush=True
                )
                return max(1, process.exitcode)
        running = [p for p in running if p.exitcode is None]
    return 0


def _end_workers(crew: Sequence[BaseProcess]) -> None:
    started = [p for p in crew if p.pid]
    for process in started:
        process.terminate()
    for process in started:
        process.join(2)
        process.kill()
        process.join()


def worker_process(folder: Path, rank: int, ends: list[Connection], size: int) -> None:
    """Run one worker of the job; a failure is reported and ends this process."""
    _shorten_sockets()
    os.setsid()  # as under mpiexec: Linux shares out its cores by session
    if sys.platform == "linux":
        end_with_parent()
    try:
        from manyhands.comm.memory import MemoryGroup
        from manyhands.training.process.worker_main import run_job

        Board(folder / BOARD_FILE, size).announce(rank)
        job = Job.read(folder)
        redirect_output(Path(job.output), rank)
        group = MemoryGroup(rank, ends, size, folder / LOCK_FILE)
        run_job(job, cast("Communicator", group), folder)
    except BaseException as error:
        with suppress(OSError):  # a full disk must not keep us from telling
            traceback.print_exc()
        if isinstance(error, EOFError | ConnectionError):
            time.sleep(5)  # another is gone; what ended it is the story, and ends us
        try:
            report_failure(folder, rank, error)
        except OSError:
            words = f"{type(error).__name__}: {error}"
            Board(folder / BOARD_FILE, size).leave_message(rank, words)
        sys.exit(getattr(error, "exit_code", 1))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
