"""Starts the group in which an all-reduce is tried, and ends a deadlock within seconds.

A case is stuck if every process that has not returned waits in an MPI call and none has completed
one for a while, though each has asked MPI often enough to have seen any message.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.errors import LaunchError
from manyhands.experiments.check.allreduce import shared_progress as words
from manyhands.experiments.check.allreduce.cases import Case, list_cases
from manyhands.experiments.check.allreduce.checked_process import DUMPS, OUTCOMES
from manyhands.experiments.check.allreduce.shared_progress import Board
from manyhands.launch.launcher import end_with_parent
from manyhands.launch.mpi import find_mpi, mpiexec_command
from manyhands.launch.scratch import private_folder
from manyhands.launch.shm_cleanup import kill_helpers

_MODULE = "manyhands.experiments.check.allreduce.checked_process"
_LOOK = 0.02  # seconds between two looks at the board
_ASKED = 30  # times that a waiting process must have asked for a message
_AFTER_ERROR = 0.1  # seconds that the others may go on after one has raised
_BLOCKED = 3.0  # times as long where a process is inside MPI and cannot be asked
_ANSWER = 1.0  # seconds for the processes to write where they are
_START = 60.0  # seconds for the group to start
_MOST_STUCK = 3  # cases, before the rest are left out


@dataclass
class Stuck:
    """A case that did not end.

    Attributes:
        case: Its number.
        seconds: How long nothing happened.
        ranks: Where each process was: call, place, the rules that it broke, and what it did:
            "waits", "computes" or "returned".
    """

    case: int
    seconds: float
    ranks: list[dict[str, Any]]

    @property
    def is_deadlock(self) -> bool:
        """Whether every process waits for another."""
        return all(row["state"] != "computes" for row in self.ranks)


@dataclass
class Trial:
    """What came out of all cases.

    Attributes:
        cases: The cases.
        outcomes: By number of the case: what each rank reports; nothing where it was not tried.
        stuck: The cases that did not end.
        times: Rows of times, beside those of MPI and of ours.
        died: What mpiexec said when the group died.
    """

    cases: list[Case]
    outcomes: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    stuck: list[Stuck] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)
    died: str = ""


def try_out(target: str, sizes: Sequence[int], *, mpi: str, patience: float) -> Trial:
    """Run all cases in one group of the largest size.

    Args:
        target: The function, as `import_object` takes it, or the name of one of ours.
        sizes: The numbers of processes.
        mpi: Which MPI starts them.
        patience: Seconds without an MPI call completed after which waiting processes are stuck;
            ten times as many for a process that computes.
    """
    trial = Trial(list_cases(sizes))
    with private_folder() as folder:
        board = Board(folder, max(sizes), create=True)
        arguments = [str(folder), target, ",".join(map(str, sizes)), "0"]
        with _started(arguments, max(sizes), mpi, folder) as (group, log):
            _follow(group, board, trial, folder, patience)
            lost = (board.ranks[:, words.DONE] < len(trial.cases) - 1).any()
            if lost and not board.orders[words.STOP]:
                trial.died = _explain_death(board, trial, group.returncode, log)
        for rank in range(max(sizes)):
            for row in _read(folder / OUTCOMES.format(rank)):
                trial.outcomes.setdefault(row.pop("case"), {})[rank] = row
    if not (trial.outcomes or trial.stuck):
        raise LaunchError(f"the group of {max(sizes)} processes failed:\n{trial.died}")
    return trial


def measure_times(target: str, workers: int, *, mpi: str, limit: float) -> list[dict[str, Any]]:
    """Time the function beside MPI's and ours; no rows if it takes longer than `limit` seconds."""
    with private_folder() as folder:
        arguments = [str(folder), target, "-", "1"]
        ends = contextlib.suppress(subprocess.TimeoutExpired)
        with _started(arguments, workers, mpi, folder) as (group, _), ends:
            group.wait(limit)
        times = folder / "times.json"
        rows: list[dict[str, Any]] = json.loads(times.read_text()) if times.exists() else []
        return rows


@contextlib.contextmanager
def _started(
    arguments: list[str], processes: int, mpi: str, folder: Path
) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """Start a group, and end it with the block."""
    line, environment = mpiexec_command(find_mpi(mpi), processes, ["-m", _MODULE, *arguments])
    environment |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    with tempfile.TemporaryFile("w+") as log:
        group = subprocess.Popen(
            line,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
        try:
            yield group, log
        finally:
            group.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                group.wait(2)
            group.kill()
            group.wait()
            kill_helpers(folder, group.pid)


def _follow(
    group: subprocess.Popen[str], board: Board, trial: Trial, folder: Path, patience: float
) -> None:
    """Watch the group until it ends."""
    last, since, polls = None, time.monotonic(), board.ranks[:, words.POLLS].copy()
    while group.poll() is None:
        time.sleep(_LOOK)
        ranks = board.ranks.copy()
        number = int(ranks[:, words.CASE].max())
        if (ranks[:, words.DONE] >= len(trial.cases) - 1).all():
            _end(group)
            return
        seen = ranks[:, [words.CASE, words.PROGRESS, words.DONE]].tobytes()
        now = time.monotonic()
        if seen != last:
            last, since, polls = seen, now, ranks[:, words.POLLS]
        elif number < 0 and now - since > _START:
            return
        elif number >= 0 and _is_stuck(ranks, number, polls, now - since, patience):
            stuck = _ask(board, trial, number, folder, now - since)
            trial.stuck += [stuck] if stuck else []
            blocked = ranks[:, words.STATE] == words.BLOCKED
            calls = [row["call"] for row in (stuck.ranks if stuck else ())]
            if any(call.lower().startswith("send to") or "isend" in call.lower() for call in calls):
                board.orders[words.BUFFERED] = 1
            if len(trial.stuck) >= _MOST_STUCK or blocked.any():
                board.orders[words.STOP] = 1
            board.orders[words.ABANDONED] = number
            if blocked.any() or (stuck and not stuck.is_deadlock):
                board.orders[words.STOP] = 1
                return  # it cannot be told to stop
            last = None


def _explain_death(board: Board, trial: Trial, code: int | None, log: Any) -> str:
    """Return in which case a process died, or what it said before the first."""
    log.seek(0)
    said = str(log.read())[-2000:]
    number = int(board.ranks[:, words.CASE].max())
    if number < 0:
        return said
    case = trial.cases[number]
    silent = board.ranks[: case.size, words.STATE] == words.COMPUTING
    who = "rank " + ", ".join(map(str, np.flatnonzero(silent))) if silent.any() else "a process"
    return f"{case.text}: {who} died (mpiexec ended with {code})"


def _end(group: subprocess.Popen[str]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        group.wait(2)


def _is_stuck(
    ranks: np.ndarray[Any, Any],
    number: int,
    polls: np.ndarray[Any, Any],
    seconds: float,
    patience: float,
) -> bool:
    """Return whether nothing will happen any more in this case."""
    open_ = (ranks[:, words.CASE] == number) & (ranks[:, words.DONE] < number)
    if not open_.any():
        return False
    state = ranks[open_, words.STATE]
    if (state == words.COMPUTING).any() or (state == words.IDLE).any():
        return seconds > 10 * patience
    asked = ranks[open_, words.POLLS] - polls[open_] >= _ASKED
    if not asked[state == words.POLLING].all():
        return False
    if (state == words.BLOCKED).any():
        return seconds > _BLOCKED * patience
    raised = (ranks[~open_, words.STATE] == words.FAILED).any()
    return seconds > (_AFTER_ERROR if raised else patience)


def _ask(board: Board, trial: Trial, number: int, folder: Path, seconds: float) -> Stuck | None:
    """Let the processes write where they are; None if one has raised, which says it all."""
    size = trial.cases[number].size
    ranks = board.ranks[:size]
    if (ranks[:, words.STATE] == words.FAILED).any():
        return None
    board.orders[words.DUMP] = number
    deadline = time.monotonic() + _ANSWER
    unfinished = ranks[:, words.DONE] < number
    while (ranks[unfinished, words.DUMPED] < number).any() and time.monotonic() < deadline:
        time.sleep(_LOOK)
    rows = []
    for rank in range(size):
        told = [row for row in _read(folder / DUMPS.format(rank)) if row["case"] == number]
        row = told[-1] if told else {"call": "", "place": None, "notes": []}
        doing = "waits" if row["call"] else "computes"
        state = doing if unfinished[rank] else "returned"
        rows.append(
            {"rank": rank, "state": state} | {k: row[k] for k in ("call", "place", "notes")}
        )
    return Stuck(number, round(seconds, 1), rows)


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON file; a line that a killed process left half is not one."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows
