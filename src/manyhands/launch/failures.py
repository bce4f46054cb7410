"""Passes a worker's failure to the launcher as a note, and explains why a group failed."""

from __future__ import annotations

import json
import os
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.errors import LaunchError, ManyhandsError, WorkerError
from manyhands.launch import resources
from manyhands.launch.atomic_files import PACKAGE

if TYPE_CHECKING:
    from manyhands.launch.status_board import Board

ERROR_FILE = "error.json"


def report_failure(
    folder: Path, rank: int, error: BaseException, ending: Sequence[int] = ()
) -> bool:
    """Write a note of this failure; return whether it is the group's first.

    `ending` are those who were seen to end when it happened.

    The note appears under its name at once and whole (a hard link), so that of several ranks that
    fail together exactly one is heard.
    """
    return write_failure_note(folder, {**describe_failure(rank, error), "ending": list(ending)})


def describe_failure(rank: int, error: BaseException) -> dict[str, Any]:
    """Return an error as a note; `to_exception` is the inverse."""
    own = isinstance(error, ManyhandsError)
    return {
        "exit_code": getattr(error, "exit_code", 1),
        "rank": rank,
        "of": getattr(error, "rank", None),  # it may tell of another's fate
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": "" if own else "".join(traceback.format_exception(error)),
    }


def write_failure_note(folder: Path, note: dict[str, Any]) -> bool:
    """Write a failure note where the launcher looks; return whether it is the first."""
    path = folder / f"error-{note['rank']}.part"
    path.write_text(json.dumps(note))
    try:
        os.link(path, folder / ERROR_FILE)
    except FileExistsError:
        return False
    return True


def has_reported(folder: Path, rank: int) -> bool:
    """Return whether that rank has written a failure note of its own."""
    return (folder / f"error-{rank}.part").exists()


def to_exception(note: dict[str, Any]) -> ManyhandsError:
    """Return the exception that this process raises for a worker's note."""
    from manyhands import errors

    rank, message = note["rank"], note["message"]
    kind = getattr(errors, note["kind"], None)
    if kind is errors.StoppedError:
        stopped = errors.ManyhandsError(message)
        stopped.exit_code = note["exit_code"]
        return stopped
    if kind is errors.ResourceError:
        return errors.ResourceError(f"rank {rank} failed: {message}")
    if kind in (errors.ConfigError, errors.DataError, errors.LaunchError, errors.ShortHandedError):
        return kind(message)  # type: ignore[no-any-return]
    if kind in (errors.DivergedError, errors.TooFewError, errors.WorkerError):
        of = note.get("of")
        return kind(message, rank=rank if of is None else of)  # type: ignore[no-any-return]
    last = message.splitlines()[0] if message else ""
    return errors.WorkerError(
        f"rank {rank} failed: {note['kind']}: {last}{_user_code_location(note['traceback'])}",
        rank=rank,
        traceback=note["traceback"],
    )


def explain_failure(
    folder: Path, board: Board, log: str, code: int, first: int | None, kills: int | None = None
) -> ManyhandsError:
    """Return why a group failed, as an error for the user.

    Args:
        folder: Where the workers leave their notes.
        board: What they did last.
        log: What mpiexec printed.
        code: The exit code of mpiexec.
        first: The rank that was seen to go first.
        kills: `memory_kills` from before the start.
    """
    notes = [n for n in board.read() if n.operation != "done"]
    pids = {n.rank: board.pid(n.rank) for n in notes}
    if (folder / ERROR_FILE).exists():
        note = json.loads((folder / ERROR_FILE).read_text())
        # MPI fails on the others when somebody dies: that is what happened, and that one is silent.
        silent = {n.rank: pids[n.rank] for n in notes if not has_reported(folder, n.rank)}
        first = next((rank for rank in note.get("ending", ()) if rank in silent), first)
        reported = first is not None and first not in silent
        if not silent or reported or "mpi4py.MPI.Exception" not in note["traceback"]:
            return to_exception(note)
        pids = silent
        if first is None and len(silent) == 1:
            first = next(iter(silent))
    else:
        for reporter, message in board.messages():
            return WorkerError(f"rank {reporter} failed: {message}", rank=reporter)
    cause = resources.crash_cause(log, code, kills)
    if not notes:
        when = "after all workers had ended" if board.read() else "before any worker started"
        ended = f"the group ended with {code} {when}"
        return LaunchError(f"{ended}{cause}" if cause else f"{ended}:\n{log}")
    where = "; ".join(f"rank {n.rank} at step {n.step} ({n.operation})" for n in notes)
    rank = next(iter(_ranks_named_by_mpiexec(log, pids)), None) if first is None else first
    who = "a worker" if rank is None else f"rank {rank}"
    how = f"died without a word (the group ended with {code})"
    if not code:
        how = "exited without reporting an error, as os._exit(0) does in a model or callback"
    return WorkerError(
        f"{who} {how}; last seen: {where}{cause}",
        rank=rank,
    )


def _ranks_named_by_mpiexec(log: str, workers: dict[int, int]) -> list[int]:
    """Return the ranks that mpiexec's output names, by pid or rank."""
    pids = {int(match[1]) for match in re.finditer(r"(?:PID|pid) (\d+)", log)}
    by_pid = [rank for rank, pid in workers.items() if pid in pids]
    named = [int(match[1]) for match in re.finditer(r"(?:process rank|rank:?) (\d+)", log)]
    return by_pid + [rank for rank in named if rank in workers]


def _user_code_location(trace: str) -> str:
    """Return the last location of a traceback in the user's own code, or ""."""
    places = map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))
    ours = (str(PACKAGE), *places, "<frozen", "src/mpi4py/")
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', trace)
    own = [(file, line, name) for file, line, name in frames if not file.startswith(ours)]
    return " ({}, line {}, in {})".format(*own[-1]) if own else ""
