"""Passes a worker's failure to the launcher as a note; the first note counts."""

from __future__ import annotations

import json
import os
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyhands.errors import ManyhandsError
from manyhands.files import PACKAGE

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


def _user_code_location(trace: str) -> str:
    """Return the last location of a traceback in the user's own code, or ""."""
    places = map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))
    ours = (str(PACKAGE), *places, "<frozen", "src/mpi4py/")
    found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', trace)
    own = [(file, line, name) for file, line, name in found if not file.startswith(ours)]
    return " ({}, line {}, in {})".format(*own[-1]) if own else ""
