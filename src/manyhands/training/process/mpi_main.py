"""One worker that mpiexec started: `python -m manyhands.training.process.mpi_main FOLDER`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.comm.rendezvous import expect
from manyhands.errors import LaunchError
from manyhands.launch.environment import wait_until_read
from manyhands.launch.failures import describe_failure, report_failure
from manyhands.launch.host_watchdog import HostWatchdog
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.launch.stderr_channel import send
from manyhands.training.process.transfer import Arrival, arrive, at_home
from manyhands.training.process.worker_main import perform, redirect

if TYPE_CHECKING:
    from mpi4py import MPI

# What every worker imports; not mpi4py.MPI, which starts MPI at once.
PRELOAD = (
    "torch",
    "numpy.random",
    "cloudpickle",
    "manyhands.training.process.build",
    "manyhands.training.process.record",
    "manyhands.allreduce",
)


def main(folder: Path) -> None:
    """Do this process's part of the job in `folder`; a failure ends the whole group."""
    channel = os.dup(sys.stderr.fileno())  # reaches the launcher, also when we write to a log
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    try:
        expect(comm, int(os.environ["MANYHANDS_PROCESSES"]))
    except LaunchError as error:
        _tell(folder, channel, comm.rank, error)
        raise SystemExit(error.exit_code) from None
    arrival = None
    try:
        if at_home():
            Board(folder / BOARD_FILE, comm.size).announce(comm.rank)
        arrival = arrive(comm, folder)
        _work(arrival, comm, channel)
        if arrival.leader:
            arrival.leave()
    except BaseException as error:
        try:
            ending: list[int] = []
            with suppress(OSError):
                ending = Board(folder / BOARD_FILE, comm.size).ending()  # soon it is too late
            with suppress(OSError):  # a full disk must not keep us from ending the others
                traceback.print_exc()
            if not _tell(folder, channel, comm.rank, error, ending):
                time.sleep(5)  # the first to fail ends us; this is only for when it cannot
        except OSError:
            words = f"{type(error).__name__}: {error}"
            Board(folder / BOARD_FILE, comm.size).leave_message(comm.rank, words)
        finally:
            if arrival:
                arrival.leave()  # whoever fails: Abort gives the leader no time to
            comm.Abort(getattr(error, "exit_code", 1))


def _work(arrival: Arrival, comm: MPI.Comm, channel: int) -> None:
    job, away = arrival.job, not arrival.home
    redirect(Path(job.output), comm.rank)
    watchdog = None
    if away:
        Board(arrival.folder / BOARD_FILE, comm.size).announce(comm.rank)
    if away and arrival.leader:
        timeout = job.config.timeout
        watchdog = HostWatchdog(arrival.folder, comm.size, Path(job.output), timeout, channel)
        watchdog.start()
    try:
        perform(job, comm, arrival.folder, ready=lambda: arrival.mapped(comm))
    finally:
        if watchdog:
            watchdog.stop()


def _tell(
    folder: Path, channel: int, rank: int, error: BaseException, ending: Sequence[int] = ()
) -> bool:
    """Let the launcher know of a failure; returns whether it may be the first."""
    if at_home():
        return report_failure(folder, rank, error, ending)
    send(channel, "error", describe_failure(rank, error))
    wait_until_read(channel)
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]))
