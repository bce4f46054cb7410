"""Output folders: every run has its own, locked while it runs, and holds nothing of the user's.

A new run takes a folder that is new or empty. A folder in which an earlier run failed without
leaving anything of value is cleared and used again. Anything else is refused before it is touched.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.errors import ConfigError
from manyhands.training import folder_lock
from manyhands.worker.checkpoint.format import FOLDER as CHECKPOINTS
from manyhands.worker.checkpoint.format import partial, remove, steps

TENSORBOARD = "tensorboard"
_EVENTS = "events.out.tfevents.*"
_HISTORY = re.compile(r"history-\d+")  # beside the checkpoints: losses and times by step
# Beside a run: not the run's, and never touched by it.
_BESIDE = re.compile(r"slurm\.(sh|log|exit)|lost\+found|\.nfs.*")
# What a run leaves that cannot be had again without training.
_VALUE = re.compile(r"model\.safetensors|best\.safetensors|steps\.jsonl|ledger-\d+\.jsonl")
_TRACES = re.compile(r"run\.json|rank-\d+\.log|ledger-\d+\.jsonl")
# What a failed run leaves as well.
_REST = re.compile(
    r"run\.json|rank-\d+\.log|trace-\d+\.json\.gz|\.shared-[0-9a-f]{32}|\.?\w+\.\w+\.part"
)
_RUN_FOLDERS = (CHECKPOINTS, TENSORBOARD)
_SWEEP = ("sweep.json", "runs", "figures", "results.csv", "runs.csv", "report.html", "report.pdf")
_FAILED = ("failed", "interrupted")


@dataclass(frozen=True)
class Claim:
    """A folder that this run alone writes into, until it is released.

    `made` are the folders that were made for it, the deepest first.
    """

    folder: Path
    held: folder_lock.Lock
    made: tuple[Path, ...] = ()

    def to_json(self) -> str:
        """Return the claim as text, for the other processes of the run."""
        return json.dumps([str(self.folder), self.held.token, [str(each) for each in self.made]])

    @classmethod
    def from_json(cls, text: str) -> Claim:
        """Return the claim that another process of the run has."""
        folder, token, made = json.loads(text)
        return cls(Path(folder), folder_lock.Lock(Path(folder), token), tuple(map(Path, made)))

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def release(self) -> None:
        """Unlock the folder; where nothing was written, remove it if it was made for this run."""
        self.held.release()
        _remove_folders(self.made)


def unique_path(name: str) -> Path:
    """Return a path in `runs` with date and time in its name that no other run has."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return (Path("runs") / f"{safe}-{stamp}-{uuid.uuid4().hex[:6]}").absolute()


def claim_new(name: str, **holder: Any) -> Claim:
    """Make and lock a folder for a run for which no output was given."""
    while True:
        claimed = hold(unique_path(name), **holder)
        if claimed.folder in claimed.made:
            return claimed
        claimed.release()


def claim(path: Path, **holder: Any) -> Claim:
    """Lock the folder that was given for a new run, made where there is none.

    Args:
        path: The folder.
        **holder: `members` or `job`, as in `lock.acquire`.

    Raises:
        ConfigError: Another run uses the folder, or it holds something, or it cannot be written.
    """
    check(path)
    claimed = hold(path, **holder)
    try:
        _check_contents(path, killed=claimed.held.inherited)  # again: now nobody else writes there
        _remove_written(path)
    except BaseException:
        claimed.release()
        raise
    return claimed


def claim_resumed(path: Path, **holder: Any) -> Claim:
    """Lock the folder of a run that is resumed.

    Raises:
        ConfigError: Another process uses the folder, it cannot be written, or what the run would
            write there is a symbolic link.
    """
    claimed = hold(path, option="resume", **holder)
    try:
        expect_no_links(path)
    except BaseException:
        claimed.release()
        raise
    return claimed


def hold(path: Path, *, option: str = "output", **holder: Any) -> Claim:
    """Lock a folder whatever it holds, made where there is none.

    Raises:
        ConfigError: Another process uses the folder, or it cannot be written.
    """
    for last in (False, True):
        made: list[Path] = []
        try:
            _make(path, made)
            return Claim(
                path, folder_lock.acquire(path, _what(path, option), **holder), tuple(made)
            )
        except FileNotFoundError as error:  # a run that was refused has just removed the folder
            if last:
                raise _unwritable(path, error, option) from None
        except OSError as error:
            _remove_folders(made)
            raise _unwritable(path, error, option) from None
        except BaseException:
            _remove_folders(made)
            raise
    raise AssertionError("unreachable")


def check(path: Path) -> None:
    """Refuse a folder that a new run cannot have, without changing anything.

    Raises:
        ConfigError: Another run uses the folder, or it holds something.
    """
    killed = expect_unlocked(path)
    try:
        _check_contents(path, killed=killed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(path, error) from None


def check_resumed(path: Path) -> None:
    """Refuse the folder of a run that still runs, without changing anything."""
    expect_unlocked(path, "resume")


def expect_unlocked(path: Path, option: str = "output") -> bool:
    """Refuse a folder in use; returns whether a killed run has left its lock there."""
    return folder_lock.expect_ended(path, _what(path, option)) is not None


def expect_possible(path: Path | None) -> None:
    """Refuse a folder that cannot be made or written, before anything that takes long.

    Raises:
        ConfigError: A file is in its place or above it, or it cannot be written.
    """
    if path is None:
        return
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise ConfigError(f"{_what(path)} cannot be made: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{_what(path)} cannot be written: permission denied for {there}")


def expect_empty(path: Path) -> None:
    """Refuse a folder that holds anything, naming it; one that is not there is empty."""
    if path.is_dir() and (names := _names(path)):
        raise ConfigError(
            f"{_what(path)} holds other things ({names[0]}{' …' if len(names) > 1 else ''}); "
            "choose a folder that is new or empty"
        )


def expect_no_links(path: Path) -> None:
    """Refuse symbolic links under the names that a run or a sweep writes."""
    for entry in sorted(path.iterdir()):
        ours = _is_written(entry.name) or entry.name in (*_RUN_FOLDERS, *_SWEEP)
        if ours and entry.is_symlink():
            raise ConfigError(
                f"{entry} is a symbolic link to {os.readlink(entry)}; manyhands does not write "
                "through links: replace it by what it points to, or remove it"
            )


def remove_run(path: Path) -> None:
    """Remove what a run has written; other files stay, and the folder with them."""
    if path.is_symlink():
        raise ConfigError(f"{path} is a symbolic link; expected the folder of a run: remove it")
    _remove_written(path)
    _remove_folders([path])


def _remove_written(path: Path) -> None:
    for entry in _inside(path):
        if _is_written(entry.name) and not entry.is_dir():
            entry.unlink()
    for entry in [*steps(path / CHECKPOINTS), *filter(partial, _inside(path / CHECKPOINTS))]:
        remove(entry)
    for entry in [*_inside(path / CHECKPOINTS), *_inside(path / TENSORBOARD)]:
        if entry.match(_EVENTS) or _HISTORY.fullmatch(entry.name):
            entry.unlink()
    _remove_folders(path / name for name in _RUN_FOLDERS)


def _is_written(name: str) -> bool:
    """Say whether a run writes a file of that name."""
    return any(known.fullmatch(name) for known in (_VALUE, _TRACES, _REST))


def _names(path: Path) -> list[str]:
    """Return what a folder holds, beside its lock and what does not matter."""
    names = sorted(entry.name for entry in os.scandir(path))
    return [name for name in names if name != folder_lock.NAME and not _BESIDE.fullmatch(name)]


def _what(path: Path, option: str = "output") -> str:
    return f"{option} is {str(path)!r}, which"


def _unwritable(path: Path, error: OSError, option: str = "output") -> ConfigError:
    why = error.strerror
    if path.is_symlink() and not path.exists():
        why = f"it is a symbolic link to {os.readlink(path)}, which does not exist"
    return ConfigError(f"{_what(path, option)} cannot be written: {why}")


def _make(path: Path, made: list[Path]) -> None:
    """Make a folder and those above it; `made` gets the ones that were not there, deepest first."""
    if path.is_dir():
        return
    if path != path.parent:
        _make(path.parent, made)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        made.insert(0, path)


def _remove_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # not empty
            folder.rmdir()


def _check_contents(path: Path, *, killed: bool) -> None:
    """Refuse what a run or the user has left; `killed` says that a run ended without clearing up.

    Raises:
        ConfigError: Naming what is there.
    """
    names = _names(path)
    if not names or _is_worthless(path, names, killed=killed):
        return
    if "run.json" in names and not _is_record(path / "run.json"):
        raise ConfigError(
            f"{_what(path)} holds a file run.json that is not a record of manyhands; choose a "
            "folder that is new or empty"
        )
    if next((path / CHECKPOINTS).glob("step-*"), None) or any(map(_TRACES.fullmatch, names)):
        raise ConfigError(f"{_what(path)} already holds a run; remove it, or choose another folder")
    expect_empty(path)


def _is_record(path: Path) -> bool:
    """Say whether a file is the record of a run, of this version or an older one."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"schema", "status"} <= found.keys()


def _is_worthless(path: Path, names: list[str], *, killed: bool) -> bool:
    """Say whether all that is there is what a run left that failed without any result."""
    ours = all(_REST.fullmatch(n) or n in _RUN_FOLDERS for n in names)
    if not ours or any((path / name).is_symlink() for name in names):
        return False
    contents = [*_inside(path / CHECKPOINTS), *_inside(path / TENSORBOARD)]
    known = (partial(e) or e.match(_EVENTS) or _HISTORY.fullmatch(e.name) for e in contents)
    if not all(known):
        return False
    try:
        status = json.loads((path / "run.json").read_bytes())["status"]
    except FileNotFoundError:
        return killed
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return status in _FAILED


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
