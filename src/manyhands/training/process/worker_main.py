"""What one process does of a job: it builds its worker, trains, and puts the record together."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands import files
from manyhands.callbacks import tell
from manyhands.errors import LateSignalError, ManyhandsError
from manyhands.launch import signals
from manyhands.launch.failures import report_failure
from manyhands.launch.host_watchdog import TURN, HostWatchdog, claim_folder, dump_stack_on_signal
from manyhands.launch.resources import explain_shortage, temporary_folder
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.training.progress import Progress

if TYPE_CHECKING:
    from mpi4py import MPI

    from manyhands.comm import Communicator
    from manyhands.training.job import Job

_LATER = 5.0  # seconds in which the first that failed may tell of it and end the others


def perform(
    job: Job,
    comm: MPI.Comm | Communicator,
    folder: Path,
    ready: Callable[[], None] | None = None,
    bar: Progress | None = None,
) -> dict[str, Any]:
    """Do one worker's part of the job; returns the run's record on every worker.

    Collective over `comm`. `folder` is this host's, for the board and for events; `ready` is called
    when the worker is built and has its data. `bar` shows what worker 0 announces, where no
    launcher does.
    """
    with explain_shortage(output=job.output, TMPDIR=temporary_folder()):
        return _perform(job, comm, folder, ready, bar)


def _perform(
    job: Job,
    comm: MPI.Comm | Communicator,
    folder: Path,
    ready: Callable[[], None] | None,
    bar: Progress | None,
) -> dict[str, Any]:
    from manyhands.training.process import build, record

    worker, kernels = build.worker(job, comm, folder)
    if bar and worker.reporter.announce:
        worker.reporter.announce = lambda event: bar.watch([], [event])
    if ready:
        ready()
    if job.config.tensorboard and worker.rank == 0:
        from manyhands.training.process.tensorboard import Scalars

        worker.reporter.callbacks.append(Scalars(worker, Path(job.output)))
    begun = record.begin(worker)

    def work() -> dict[str, Any]:
        process = record.train(worker, Path(job.output), begun)
        return record.record(job, worker, kernels, process)

    if job.config.on_failure == "continue":
        from manyhands.training.process.recovery import outlive

        merged = outlive(worker, work, lambda first: build.lead(job, first, folder))
    else:
        merged = work()
    tell(worker.reporter.callbacks, "on_end", merged)
    return merged


def redirect(output: Path, rank: int) -> None:
    """Send everything this process prints, C libraries included, to its own log."""
    log = files.append(output / f"rank-{rank}.log")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)
    dump_stack_on_signal()  # asked for by the launcher when somebody hangs


def join(
    job: Job,
    group: Communicator,
    folder: Path,
    *,
    leader: bool,
    release: Callable[[], None],
    shown: bool | None = False,
) -> dict[str, Any]:
    """Do this process's part of a job in a group that somebody else started.

    Collective over `group`. `folder` is private to this host and shared by its processes; one of
    them is its `leader` and watches over the others. These watch as well, with more patience: it
    may be the leader who hangs. `release` unlocks the output folder; it is called by a process that
    ends the whole group, which leaves no other process time to do it. Rank 0 shows how far training
    is, unless `shown` is False.
    """
    from manyhands.model.kernels import tuning

    if group.size == 1 or not (folder / BOARD_FILE).exists():
        _make_board(folder, group.size)
    board = Board(folder / BOARD_FILE, group.size)
    watched = group.size > 1 and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    watchdog = restore_signal = None
    if watched:
        restore_signal = dump_stack_on_signal()  # for which the leader asks
        patience = job.config.timeout + (0.0 if leader else TURN * group.rank)
        watchdog = HostWatchdog(folder, group.size, Path(job.output), patience)
    # Only the main thread may; elsewhere signals stay the caller's.
    handlers = signals.install(lambda received, _: board.request_stop(received))
    group.barrier()  # whoever fails after this may take the folder away
    try:
        if watchdog:
            watchdog.start()
        speaks = shown is not False and group.rank == 0
        bar = Progress(job.config, shown=shown, joined=True) if speaks else None
        with tuning.put_back(), bar or nullcontext():
            found = perform(job, group, folder, None, bar)
        late = max(group.gather(board.stop_signal()))
        group.release()
    except BaseException as error:
        if group.size == 1:
            raise
        _tell(folder, group, error)
        if aside := claim_folder(folder):  # this process does not come back
            shutil.rmtree(aside, ignore_errors=True)
        release()
        group.abort(getattr(error, "exit_code", 1))
        raise
    finally:
        if watchdog:
            watchdog.stop()
        if restore_signal:
            restore_signal()
        signals.restore(handlers)
    if late:
        raise LateSignalError(late, job.output)
    return found


def _tell(folder: Path, group: Communicator, error: BaseException) -> None:
    """Print a failure, if no other process of the host did; the group ends after this."""
    lost = group.lost(error)
    if lost:
        time.sleep(_LATER)  # another is gone; what ended it is the story
    first = False
    with suppress(FileNotFoundError):  # the folder is gone: another has told, and ended
        first = report_failure(folder, group.rank, error)
    if not first:
        time.sleep(0.0 if lost else _LATER)
        return
    text = str(error) if isinstance(error, ManyhandsError) else traceback.format_exc()
    if lost:
        text = f"the connection to another process was lost: it has ended ({error})"
    print(f"[rank {group.rank}] {text}", file=sys.stderr)


def _make_board(folder: Path, size: int) -> None:
    """Make the board once, however many processes of the host try."""
    temporary = folder / f"{BOARD_FILE}-{os.getpid()}"
    Board(temporary, size, create=True)
    with suppress(FileExistsError):
        os.link(temporary, folder / BOARD_FILE)
    temporary.unlink()
