"""One worker that our own launcher started: `python -m manyhands.work FOLDER`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from manyhands.errors import LaunchError
from manyhands.job import Job, fail, perform


def _redirect(output: Path, rank: int) -> None:
    """Send everything this process prints, C libraries included, to its own log."""
    log = os.open(output / f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)


def main(folder: Path) -> None:
    """Do this process's part of the job in `folder`; a failure ends the whole group."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    expected = int(os.environ["MANYHANDS_PROCESSES"])
    if comm.size != expected:
        error = LaunchError(
            f"{expected} processes were started but MPI sees {comm.size}: the mpiexec and the MPI "
            "library are of two kinds; unset MPI4PY_LIBMPI or choose one by --mpi"
        )
        fail(folder, comm.rank, error)
        raise SystemExit(3)
    try:
        job = Job.read(folder)
        _redirect(Path(job.output), comm.rank)
        perform(job, comm, folder)
    except BaseException as error:
        traceback.print_exc()
        if not fail(folder, comm.rank, error):
            time.sleep(5)  # the first to fail ends us; this is only for when it cannot
        sys.stderr.flush()
        comm.Abort(getattr(error, "exit_code", 1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
