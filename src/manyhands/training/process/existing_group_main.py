"""Runs one worker in a group that somebody's mpiexec, srun or torchrun started."""

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

from manyhands.errors import LateSignalError, ManyhandsError
from manyhands.launch import signals
from manyhands.launch.failures import report_failure
from manyhands.launch.host_watchdog import TURN, HostWatchdog, claim_folder, dump_stack_on_signal
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.model.kernels import tuning
from manyhands.training.process.worker_main import run_job
from manyhands.training.progress import Progress

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.training.job import Job

_LATER = 5.0  # seconds in which the first process that failed may report it and end the others


def join(
    job: Job,
    group: Communicator,
    folder: Path,
    *,
    leader: bool,
    release: Callable[[], None],
    shown: bool | None = False,
) -> dict[str, Any]:
    """Train one worker of the job in a group that another launcher started.

    Collective over `group`. `folder` is private to this host and shared by its processes; one of
    them, its `leader`, watches the others for hangs. The others watch as well, with longer
    timeouts, in case the leader hangs. `release` unlocks the output folder; a process that ends the
    whole group calls it, since no other process has time to. Rank 0 shows the progress, unless
    `shown` is False.
    """
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
        with tuning.restore_libraries(), bar or nullcontext():
            record = run_job(job, group, folder, None, bar)
        late = max(group.gather(board.stop_signal()))
        group.release()
    except BaseException as error:
        if group.size == 1:
            raise
        _print_failure(folder, group, error)
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
    return record


def _print_failure(folder: Path, group: Communicator, error: BaseException) -> None:
    """Print a failure, unless another process of the host has; the group ends after this."""
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
