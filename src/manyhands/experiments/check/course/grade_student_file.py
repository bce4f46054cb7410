"""Grades a student's file by the tests of an assignment: `manyhands check --course FOLDER`."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manyhands.errors import ConfigError
from manyhands.experiments.check.course.exercise_process import FAILURE, PASSED, SECRET
from manyhands.launch.launcher import end_with_parent
from manyhands.launch.mpi import find_mpi, mpiexec_command
from manyhands.launch.scratch import private_folder
from manyhands.launch.shm_cleanup import kill_helpers

SCHEMA = "manyhands-course/1"
_MODULE = "manyhands.experiments.check.course.exercise_process"
_PATIENCE = 30.0  # seconds for one test, its start included


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What came of one test.

    Attributes:
        test: What holds if it passes.
        points: What it earned.
        of: What it could earn.
        why: Why it failed; "" if it passed.
    """

    test: str
    points: int
    of: int
    why: str = ""

    def __str__(self) -> str:
        head = f"{self.points:>4} of {self.of}  {self.test}"
        return "\n".join([head, *(f"{'':10}{line}" for line in self.why.splitlines())])


@dataclass(frozen=True, kw_only=True)
class Grade:
    """What came of all tests of an assignment.

    Attributes:
        assignment: The name of its folder.
        file: The student's file.
        marks: One for each test.
    """

    assignment: str
    file: str
    marks: tuple[Mark, ...]

    @property
    def points(self) -> int:
        """The sum of the points."""
        return sum(mark.points for mark in self.marks)

    @property
    def of(self) -> int:
        """The most that can be reached."""
        return sum(mark.of for mark in self.marks)

    def to_json(self) -> dict[str, Any]:
        """Return the grade for a program that reads it."""
        marks = [asdict(mark) for mark in self.marks]
        head = {"schema": SCHEMA, "assignment": self.assignment, "file": self.file}
        return {**head, "points": self.points, "of": self.of, "tests": marks}

    def __str__(self) -> str:
        return "\n".join([*map(str, self.marks), "", f"{self.points} of {self.of} points"])


def grade(
    folder: str,
    file: str,
    *,
    public: bool = False,
    mpi: str = "auto",
    patience: float = _PATIENCE,
    tell: Callable[[Mark], object] = lambda _: None,
) -> Grade:
    """Run the tests of an assignment on a student's file.

    Args:
        folder: The assignment's, with public_tests.py and, for teachers, instructor_tests.py.
        file: The student's.
        public: Run the public tests only, also where the instructor's are there.
        mpi: Which MPI starts the processes.
        patience: Seconds for one test, the start of its processes included.
        tell: Called with each mark when it is known.

    Raises:
        ConfigError: If the folder holds no tests, or the file does not exist.
    """
    place = Path(folder)
    sets = [place / "public_tests.py", *([] if public else [place / "instructor_tests.py"])]
    if not sets[0].is_file():
        raise ConfigError(
            f"course is {folder!r}; expected the folder of an assignment, with public_tests.py in "
            f"it, such as course/3-allreduce; {place.resolve()} has none"
        )
    if not Path(file).is_file():
        raise ConfigError(f"{file} does not exist; expected your file, such as mine.py")
    marks = []
    for tests in filter(Path.is_file, sets):
        for each in _list_tests(tests):
            marks.append(_run(tests, each, file, mpi, patience))
            tell(marks[-1])
    return Grade(assignment=place.resolve().name, file=file, marks=tuple(marks))


def _list_tests(tests: Path) -> list[dict[str, Any]]:
    """Return the tests of a file, which is imported by a process of its own."""
    line = [sys.executable, "-m", _MODULE, str(tests)]
    ended = subprocess.run(line, capture_output=True, text=True)
    if ended.returncode:
        raise ConfigError(f"{tests} fails: {ended.stderr.strip().splitlines()[-1]}")
    listed: list[dict[str, Any]] = json.loads(ended.stdout)
    return listed


def _run(tests: Path, test: dict[str, Any], file: str, mpi: str, patience: float) -> Mark:
    """Run one test in a group of its own; it passes if each process came to its end."""
    what, of, secret = test["what"], test["points"], secrets.token_hex()
    with private_folder() as folder:
        (folder / SECRET).write_text(secret)
        options = ["-m", _MODULE, str(tests), test["name"], file, str(folder)]
        if test["processes"] == 1:
            line, environment = [sys.executable, *options], dict(os.environ)
        else:
            line, environment = mpiexec_command(find_mpi(mpi), test["processes"], options)
        environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
        code, output = _follow(line, environment, folder, patience)
        failures = [json.loads(p.read_text()) for p in sorted(folder.glob(FAILURE.format("*")))]
        reports = [folder / PASSED.format(rank) for rank in range(test["processes"])]
        passed = all(p.is_file() and p.read_bytes() == secret.encode() for p in reports)
    if code == 0 and passed and not failures:
        return Mark(test=what, points=of, of=of)
    if code is None and not failures:
        why = (
            f"did not end within {patience:g} seconds: is there a message that nobody receives? On "
            "a busy machine, allow more by --patience"
        )
    else:
        why = _explain(code, output, failures, file)
    return Mark(test=what, points=0, of=of, why=why)


def _follow(
    line: list[str], environment: dict[str, str], folder: Path, patience: float
) -> tuple[int | None, str]:
    """Wait for a group; return its exit code, None if it did not end, and what it printed."""
    with subprocess.Popen(
        line,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    ) as group:
        try:
            output = group.communicate(timeout=patience)[0]
            return group.returncode, output
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                group.communicate(timeout=3)
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group.pid, signal.SIGKILL)
            kill_helpers(folder, group.pid)


def _explain(code: int | None, output: str, failures: list[dict[str, Any]], file: str) -> str:
    """Return why a test failed: each reason once, with the processes that it holds for."""
    reasons: dict[str, list[int]] = {}
    for each in failures:
        line = f" ({Path(file).name}, line {each['line']})" if each["line"] else ""
        reasons.setdefault(f"{each['why']}{line}", []).append(each["rank"])
    if not reasons:
        last = output.strip().splitlines()[-5:]
        early = "" if code else " before its test was over: does the file exit?"
        return "\n".join([f"ended with exit code {code}{early}", *last])
    several = any(rank for ranks in reasons.values() for rank in ranks)
    return "\n".join(
        f"process {', '.join(map(str, ranks))}: {why}" if several else why
        for why, ranks in reasons.items()
    )
