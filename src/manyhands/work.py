"""One worker that our own launcher started: `python -m manyhands.work FOLDER`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from manyhands.board import BOARD_FILE, Board
from manyhands.errors import LaunchError
from manyhands.job import Job, fail, perform, redirect
from manyhands.meeting import expect


def main(folder: Path) -> None:
    """Do this process's part of the job in `folder`; a failure ends the whole group."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    expected = int(os.environ["MANYHANDS_PROCESSES"])
    try:
        expect(comm, expected)
    except LaunchError as error:
        fail(folder, comm.rank, error)
        raise SystemExit(error.exit_code) from None
    try:
        Board(folder / BOARD_FILE, comm.size).enter(comm.rank)  # so that our death has a name
        job = Job.read(folder)
        redirect(Path(job.output), comm.rank)
        perform(job, comm, folder)
    except BaseException as error:
        try:
            with suppress(OSError):  # a full disk must not keep us from ending the others
                traceback.print_exc()
            if not fail(folder, comm.rank, error):
                time.sleep(5)  # the first to fail ends us; this is only for when it cannot
        except OSError:
            words = f"{type(error).__name__}: {error}"
            Board(folder / BOARD_FILE, comm.size).last_words(comm.rank, words)
        finally:
            comm.Abort(getattr(error, "exit_code", 1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
