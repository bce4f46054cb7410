"""One process of one test of an exercise; started by `grade_student_file`.

python -m manyhands.experiments.check.course.exercise_process TESTS TEST FILE FOLDER
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from manyhands.config.user_file import load_file
from manyhands.experiments.check.course.points_per_test import Grading

FAILURE = "failure-{}.json"
PASSED = "passed-{}"  # a process writes the secret into it when its test has ended
SECRET = "secret"
_OTHERS = 0.3  # seconds in which the other processes may fail for a reason of their own
_ALLOWED = {"Abort", "Get_rank", "Get_size", "Iprobe", "Irecv", "Isend"}  # calls of a communicator


def list_tests(tests: str) -> list[dict[str, Any]]:
    """Return the names of the tests in a file, what they hold, points and processes, in order."""
    return [
        {
            "name": name,
            "what": " ".join((value.__doc__ or name).strip().splitlines()[0].split()),
            "points": value.grading.points,
            "processes": value.grading.processes,
        }
        for name, value in vars(load_file(tests, "course")).items()
        if isinstance(getattr(value, "grading", None), Grading)
    ]


def main(tests: str, name: str, file: str, folder: Path) -> int:
    """Run one test; a failure leaves a file that says why, and ends the other processes.

    A success leaves a file with the secret, so that a student's file which exits does not pass.
    """
    test = getattr(load_file(tests, "course"), name)
    grading: Grading = test.grading
    comm = _communicator(grading)
    rank = comm.rank if comm is not None else 0
    secret = _take_secret(folder, rank, alone=comm is None)
    try:
        test(load_file(file, "file"), comm)
    except BaseException as error:
        (folder / FAILURE.format(rank)).write_text(json.dumps(_describe(error, file, rank)))
        if comm is None:
            return 1
        time.sleep(_OTHERS)
        comm.Abort(1)
    (folder / PASSED.format(rank)).write_text(secret)
    return 0


def _take_secret(folder: Path, rank: int, *, alone: bool) -> str:
    """Return what the grader wrote for this test; no file has it when the student's is loaded."""
    secret = ""
    if rank == 0:
        secret = (folder / SECRET).read_text()
        (folder / SECRET).unlink()
    if alone:
        return secret
    from mpi4py import MPI

    return str(MPI.COMM_WORLD.bcast(secret))


def _communicator(grading: Grading) -> Any:
    """Return what the test communicates over; None if it is a single process's."""
    if grading.processes == 1 and not grading.messages:
        return None
    from mpi4py import MPI

    if not grading.messages:
        return MPI.COMM_WORLD

    class Messages(MPI.Intracomm):
        """A communicator of non-blocking messages, which it counts."""

        bytes_sent = messages_sent = 0
        sent_to: frozenset[int] = frozenset()

        def Isend(self, buf: Any, dest: int, tag: int = 0) -> Any:  # noqa: N802
            """Count and send."""
            self.messages_sent += 1
            self.sent_to |= {dest}
            array = buf[0] if isinstance(buf, list | tuple) else buf
            self.bytes_sent += array.nbytes
            return super().Isend(buf, dest, tag)

    def refuse(call: str) -> Any:
        def refused(*_: Any, **__: Any) -> None:
            raise AssertionError(f"calls comm.{call}; only Isend, Irecv and waiting are allowed")

        return refused

    for call in dir(MPI.Intracomm):
        if call[0] != "_" and call not in _ALLOWED and callable(getattr(MPI.Intracomm, call)):
            setattr(Messages, call, refuse(call))
    return Messages(MPI.COMM_WORLD)


def _describe(error: BaseException, file: str, rank: int) -> dict[str, Any]:
    """Return what failed, with the last line of the student's file that had a part in it."""
    path = str(Path(file).resolve())
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    kind = "" if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: "
    line = lines[-1].lineno if lines else None
    return {"rank": rank, "why": f"{kind}{error}".strip(), "line": line}


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(list_tests(sys.argv[1])))
        sys.exit()
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
