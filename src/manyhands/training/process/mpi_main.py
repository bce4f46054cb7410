"""Runs one worker under mpiexec: `python -m manyhands.training.process.mpi_main FOLDER`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.comm.rendezvous import check_group
from manyhands.errors import LaunchError
from manyhands.launch.environment import wait_until_read
from manyhands.launch.failures import describe_failure, report_failure
from manyhands.launch.host_watchdog import HostWatchdog
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.launch.stderr_channel import send
from manyhands.launch.worker_log import redirect_output
from manyhands.training.process.send_job_to_hosts import LocalJob, on_launcher_host, receive_job

if TYPE_CHECKING:
    from mpi4py import MPI

# What every worker imports; not mpi4py.MPI, which starts MPI at once.
PRELOAD = (
    "torch",
    "numpy.random",
    "cloudpickle",
    "manyhands.training.process.worker_main",
    "manyhands.allreduce",
)


def main(folder: Path) -> None:
    """Run one worker of the job in `folder`; a failure ends the whole group."""
    channel = os.dup(sys.stderr.fileno())  # reaches the launcher, also when we write to a log
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    try:
        check_group(comm, int(os.environ["MANYHANDS_PROCESSES"]))
    except LaunchError as error:
        _report_failure(folder, channel, comm.rank, error)
        raise SystemExit(error.exit_code) from None
    arrival = None
    try:
        if on_launcher_host():
            Board(folder / BOARD_FILE, comm.size).announce(comm.rank)
        arrival = receive_job(comm, folder)
        _run_worker(arrival, comm, channel)
        if arrival.leader:
            arrival.remove_folder()
    except BaseException as error:
        try:
            ending: list[int] = []
            with suppress(OSError):
                ending = Board(folder / BOARD_FILE, comm.size).ending()  # soon it is too late
            with suppress(OSError):  # a full disk must not keep us from ending the others
                traceback.print_exc()
            if not _report_failure(folder, channel, comm.rank, error, ending):
                time.sleep(5)  # the first to fail ends us; this is only for when it cannot
        except OSError:
            words = f"{type(error).__name__}: {error}"
            Board(folder / BOARD_FILE, comm.size).leave_message(comm.rank, words)
        finally:
            if arrival:
                arrival.remove_folder()  # whoever fails: Abort gives the leader no time to
            comm.Abort(getattr(error, "exit_code", 1))


def _run_worker(arrival: LocalJob, comm: MPI.Comm, channel: int) -> None:
    """Train with output in the worker's log; other hosts send heartbeats meanwhile."""
    job, away = arrival.job, not arrival.on_launcher_host
    redirect_output(Path(job.output), comm.rank)
    watchdog = None
    if away:
        Board(arrival.folder / BOARD_FILE, comm.size).announce(comm.rank)
    if away and arrival.leader:
        timeout = job.config.timeout
        watchdog = HostWatchdog(arrival.folder, comm.size, Path(job.output), timeout, channel)
        watchdog.start()
    try:
        from manyhands.training.process.worker_main import run_job  # torch: after `announce`

        run_job(job, comm, arrival.folder, ready=lambda: arrival.remove_data_copy(comm))
    finally:
        if watchdog:
            watchdog.stop()


def _report_failure(
    folder: Path, channel: int, rank: int, error: BaseException, ending: Sequence[int] = ()
) -> bool:
    """Report a failure to the launcher; return whether it may be the first."""
    if on_launcher_host():
        return report_failure(folder, rank, error, ending)
    send(channel, "error", describe_failure(rank, error))
    wait_until_read(channel)
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]))
