"""Output folders: each run has its own, locked while it runs, and keeps the user's files.

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
from manyhands.worker.checkpoint.folder_layout import FOLDER as CHECKPOINTS
from manyhands.worker.checkpoint.folder_layout import partial, remove, steps
from manyhands.worker.past_epochs_file import NAME as EPOCHS

TENSORBOARD = "tensorboard"
_EVENTS = "events.out.tfevents.*"
_HISTORY = re.compile(rf"history-\d+|{EPOCHS.pattern}")  # beside the checkpoints: of long runs
# Beside a run: not the run's, and never touched by it.
_BESIDE = re.compile(r"slurm\.(sh|log|exit)|lost\+found|\.nfs.*")
# What a run leaves that cannot be had again without training.
_VALUE = re.compile(r"model\.safetensors|best\.safetensors|steps\.jsonl|ledger-\d+\.jsonl")
_TRACES = re.compile(r"run\.json|rank-\d+\.log|ledger-\d+\.jsonl")
# What a failed run leaves as well.
_REST = re.compile(
    r"(run|mlflow)\.json|rank-\d+\.log|trace-\d+\.json\.gz|\.shared-[0-9a-f]{32}|\.?\w+\.\w+\.part"
)
_RUN_FOLDERS = (CHECKPOINTS, TENSORBOARD)
_SWEEP = ("sweep.json", "runs", "figures", "results.csv", "runs.csv", "report.html", "report.pdf")
_FAILED = ("failed", "interrupted")


@dataclass(frozen=True)
class Claim:
    """A folder that only this run writes to, until it is released.

    `made` are the folders that were made for it, the deepest first.
    """

    folder: Path
    lock: folder_lock.Lock
    made: tuple[Path, ...] = ()

    def to_json(self) -> str:
        """Return the claim as text, for the other processes of the run."""
        return json.dumps([str(self.folder), self.lock.token, [str(each) for each in self.made]])

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
        """Unlock the folder; remove it if it was made for this run and is empty."""
        self.lock.release()
        _remove_folders(self.made)


def unique_path(name: str) -> Path:
    """Return an unused path in `runs` with date and time in its name."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return (Path("runs") / f"{safe}-{stamp}-{uuid.uuid4().hex[:6]}").absolute()


def claim_new(name: str, **holder: Any) -> Claim:
    """Make and lock a folder for a run without an `output` option."""
    while True:
        claimed = lock_any(unique_path(name), **holder)
        if claimed.folder in claimed.made:
            return claimed
        claimed.release()


def claim(path: Path, **holder: Any) -> Claim:
    """Lock the `output` folder of a new run; make it if needed.

    Args:
        path: The folder.
        **holder: `members` or `job`, as in `lock.acquire`.

    Raises:
        ConfigError: Another run uses the folder, or it holds something, or it cannot be written.
    """
    check(path)
    claimed = lock_any(path, **holder)
    try:
        _check_contents(path, killed=claimed.lock.inherited)  # again: now nobody else writes there
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
    claimed = lock_any(path, option="resume", **holder)
    try:
        check_no_links(path)
    except BaseException:
        claimed.release()
        raise
    return claimed


def lock_any(path: Path, *, option: str = "output", **holder: Any) -> Claim:
    """Lock a folder whatever its content; make it if needed.

    Raises:
        ConfigError: Another process uses the folder, or it cannot be written.
    """
    for last in (False, True):
        made: list[Path] = []
        try:
            _make_folders(path, made)
            return Claim(
                path,
                folder_lock.acquire(path, _describe_entry(path, option), **holder),
                tuple(made),
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
    """Refuse a folder that a new run cannot use, without changing anything.

    Raises:
        ConfigError: Another run uses the folder, or it holds something.
    """
    killed = check_unlocked(path)
    try:
        _check_contents(path, killed=killed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(path, error) from None


def check_resumed(path: Path) -> None:
    """Refuse the folder of a run that still runs, without changing anything."""
    check_unlocked(path, "resume")


def check_unlocked(path: Path, option: str = "output") -> bool:
    """Refuse a folder in use; return whether a killed run has left its lock there."""
    return folder_lock.ended_holder(path, _describe_entry(path, option)) is not None


def check_writable(path: Path | None) -> None:
    """Refuse a folder that cannot be made or written, before anything that takes long.

    Raises:
        ConfigError: A file is in its place or above it, or it cannot be written.
    """
    if path is None:
        return
    try:
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
    except OSError as error:  # a name too long, a loop of links
        raise ConfigError(f"{_describe_entry(path)} cannot be made: {error.strerror}") from None
    if not there.is_dir():
        raise ConfigError(f"{_describe_entry(path)} cannot be made: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{_describe_entry(path)} cannot be written: permission denied for {there}"
        )


def check_empty(path: Path) -> None:
    """Refuse a folder with any content, and name it; a missing folder is empty."""
    if path.is_dir() and (names := _entries(path)):
        raise ConfigError(
            f"{_describe_entry(path)} holds other things ({names[0]}"
            f"{' …' if len(names) > 1 else ''}); choose a folder that is new or empty"
        )


def check_no_links(path: Path) -> None:
    """Refuse symbolic links under the names that a run or a sweep writes."""
    for entry in sorted(path.iterdir()):
        ours = _is_written(entry.name) or entry.name in (*_RUN_FOLDERS, *_SWEEP)
        if ours and entry.is_symlink():
            raise ConfigError(
                f"{entry} is a symbolic link to {os.readlink(entry)}; manyhands does not write "
                "through links: replace it by what it points to, or remove it"
            )


def remove_run(path: Path) -> None:
    """Remove the files that a run has written; other files stay, and the folder with them."""
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
    """Return whether a run writes a file of that name."""
    return any(known.fullmatch(name) for known in (_VALUE, _TRACES, _REST))


def _entries(path: Path) -> list[str]:
    """Return the names in a folder, without its lock and files that do not matter."""
    names = sorted(entry.name for entry in os.scandir(path))
    return [name for name in names if name != folder_lock.NAME and not _BESIDE.fullmatch(name)]


def _describe_entry(path: Path, option: str = "output") -> str:
    return f"{option} is {str(path)!r}, which"


def _unwritable(path: Path, error: OSError, option: str = "output") -> ConfigError:
    why = error.strerror
    if path.is_symlink() and not path.exists():
        why = f"it is a symbolic link to {os.readlink(path)}, which does not exist"
    return ConfigError(f"{_describe_entry(path, option)} cannot be written: {why}")


def _make_folders(path: Path, made: list[Path]) -> None:
    """Make a folder and its parents; add the new ones to `made`, deepest first."""
    if path.is_dir():
        return
    if path != path.parent:
        _make_folders(path.parent, made)
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
    """Refuse files of a run or of the user; `killed`: a run ended without cleaning up.

    Raises:
        ConfigError: Naming what is there.
    """
    names = _entries(path)
    if not names or _only_failed_run(path, names, killed=killed):
        return
    if "run.json" in names and not _is_record(path / "run.json"):
        raise ConfigError(
            f"{_describe_entry(path)} holds a file run.json that is not a record of manyhands; "
            "choose a folder that is new or empty"
        )
    if next((path / CHECKPOINTS).glob("step-*"), None) or any(map(_TRACES.fullmatch, names)):
        raise ConfigError(
            f"{_describe_entry(path)} already holds a run; remove it, or choose another folder"
        )
    check_empty(path)


def _is_record(path: Path) -> bool:
    """Return whether a file is the record of a run, of this or an older version."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and {"schema", "status"} <= record.keys()


def _only_failed_run(path: Path, names: list[str], *, killed: bool) -> bool:
    """Return whether the folder holds only what a failed run without a result left."""
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
