"""The folder of a checkpoint: written atomically, with checksums; the newest whole one is used.

    OUTPUT/checkpoints/step-00000500/
        rank-0.safetensors …   what a process holds: parameters, optimizer, buffers, random state
        rank-0.json …          its numbers
        best.safetensors       the best model so far, where something is kept aside to judge by
        checkpoint.json        written last: what this belongs to, and the SHA-256 of every file
    OUTPUT/checkpoints/history-0 …
                               losses and times by step of a long run; a part says how many are its
    OUTPUT/checkpoints/epochs-0-500 …
                               the first epochs of a long run; likewise

Each process writes its own part from a background thread; rank 0's thread waits for all parts,
writes `checkpoint.json` and renames the folder. What is there under its final name is therefore
whole, or was damaged later, which the checksums show. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.errors import DataError
from manyhands.launch import atomic_files as atomic
from manyhands.worker import past_epochs_file

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 2
FOLDER = "checkpoints"
MANIFEST = "checkpoint.json"
BEST = "best.safetensors"  # also in a run's folder
_NAME = re.compile(r"step-(\d{8}|[1-9]\d{8,})")  # of a checkpoint; anything else is not touched
_PARTIAL = re.compile(rf"\.{_NAME.pattern}\.part")
_FILES = re.compile(r"(rank-\d+\.(safetensors|json)|best\.safetensors|checkpoint\.json)(\.part)?")
# What reading JSON that is not what it should be may end in.
MISUNDERSTOOD = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class CheckpointPart:
    """What one process needs to go on: tensors by name, and numbers that JSON can hold.

    Each of `sync` puts a file on the disk that the part refers to.
    """

    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, Any]
    sync: tuple[Callable[[], None], ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole."""

    folder: Path
    about: Mapping[str, Any]

    @property
    def step(self) -> int:
        """How many steps had been done."""
        return int(self.about["step"])

    def part(self, rank: int) -> CheckpointPart:
        """Return what process `rank` had written.

        Raises:
            DataError: If it is not there, or cannot be understood.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.folder / f"rank-{rank}"
        try:
            numbers = json.loads(atomic.read(path.with_suffix(".json")))["numbers"]
            if before := numbers.get("epochs_before"):
                first = past_epochs_file.read(self.folder.parent, before)
                numbers["epochs"] = [*first, *numbers["epochs"]]
            atomic.expect_regular(path.with_suffix(".safetensors"))
            return CheckpointPart(load_file(path.with_suffix(".safetensors")), numbers)
        except DataError:
            raise
        except (OSError, *MISUNDERSTOOD, SafetensorError) as error:
            raise DataError(f"{path} cannot be understood: {error}") from None


class Writer:
    """Writes checkpoints in the background; one at a time, the last `keep` are kept.

    Args:
        output: The run's folder.
        rank: This process's number.
        size: How many processes write a part.
        keep: How many whole checkpoints stay.
        patience: Seconds that rank 0 waits for the others' parts.
    """

    def __init__(
        self, output: Path, rank: int, size: int, keep: int, patience: float = 60.0
    ) -> None:
        self.folder = output / FOLDER
        self.rank, self.size, self.keep, self.patience = rank, size, keep, patience
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        if rank == 0:  # parts of a run that was killed must not be taken for this one's
            for left in filter(partial, self.folder.glob(".step-*.part")):
                remove(left)

    def write(
        self, step: int, part: CheckpointPart, about: Mapping[str, Any], best: bytes | None = None
    ) -> None:
        """Begin to write; `part`'s tensors must be copies that nobody changes any more.

        `best` is the file of the best model, where rank 0 has one.
        """
        self.wait()
        about = {**about, "schema": SCHEMA, "step": step, "processes": self.size}
        arguments = (step, part, about, best)
        self._thread = threading.Thread(target=self._guarded, args=arguments, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint under way is written; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def give_up(self) -> None:
        """End the checkpoint under way, whole or not; what went wrong with it does not matter."""
        self.patience = 0.0
        if self._thread is not None:
            self._thread.join()
        self._thread = self._error = None

    def _guarded(
        self, step: int, part: CheckpointPart, about: dict[str, Any], best: bytes | None
    ) -> None:
        try:
            self._write(step, part, about, best)
        except BaseException as error:  # handed to the worker by wait()
            self._error = error

    def _write(
        self, step: int, part: CheckpointPart, about: dict[str, Any], best: bytes | None
    ) -> None:
        final = path(self.folder.parent, step)
        temporary = final.with_name(f".{final.name}.part")
        atomic.make_folder(self.folder)
        atomic.make_folder(temporary)
        _write_part(temporary, self.rank, part)
        if self.rank != 0:
            return
        names = [f"rank-{rank}.json" for rank in range(self.size)]
        _await(temporary, names, lambda: self.patience)
        if best is not None:
            _write_file(temporary / BEST, best)
        files = sorted([*temporary.glob("rank-*"), *temporary.glob(BEST)])
        about["sha256"] = {p.name: atomic.sha256(p) for p in files if not p.name.endswith(".part")}
        _write_file(temporary / MANIFEST, _sealed(about))
        if final in steps(self.folder):  # damaged, or of a run that was abandoned here
            remove(final)
        temporary.rename(final)
        atomic.flush_folder(self.folder)
        whole = [path for path in steps(self.folder) if (path / MANIFEST).exists()]
        others = [path for path in whole if path != final]  # what is new stays
        for old in others[: max(0, len(others) + 1 - self.keep)]:
            remove(old)


def _write_part(folder: Path, rank: int, part: CheckpointPart) -> None:
    from safetensors.torch import save

    for sync in part.sync:
        sync()
    data = save({name: tensor.contiguous() for name, tensor in part.tensors.items()})
    _write_file(folder / f"rank-{rank}.safetensors", data)
    numbers = json.dumps({"numbers": dict(part.numbers)}).encode()
    _write_file(folder / f"rank-{rank}.json", numbers)  # last: it says that the part is there


def _write_file(path: Path, data: bytes) -> None:
    """Write, flush to the disk, rename: the file is there whole or not at all."""
    atomic.write(path, data, flush=True)


def put_back_best(checkpoint: Checkpoint, output: Path) -> None:
    """Let the best model be that of the checkpoint: what came after it is to come again."""
    if (checkpoint.folder / BEST).exists():
        _write_file(output / BEST, atomic.read(checkpoint.folder / BEST))


def _await(folder: Path, names: list[str], patience: Callable[[], float]) -> None:
    """Wait for the other processes' parts, which come when they have done as many steps."""
    begun = time.monotonic()
    while missing := [name for name in names if not (folder / name).exists()]:
        if time.monotonic() - begun > patience():
            raise OSError(f"{folder} still lacks {', '.join(missing)} after {patience():.0f} s")
        time.sleep(0.005)


def _sealed(about: Mapping[str, Any]) -> bytes:
    """Return the manifest with a checksum of itself."""
    text = json.dumps(about, sort_keys=True)
    return json.dumps({"about": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def path(output: Path, step: int) -> Path:
    """Return where a run's checkpoint of that step is, or would be."""
    return output / FOLDER / f"step-{step:08d}"


def steps(folder: Path) -> list[Path]:
    """Return the finished checkpoints of a folder, oldest first."""
    folders = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    own = [path for path in folders if path.is_dir() and not path.is_symlink()]
    return sorted(own, key=lambda path: int(path.name.removeprefix("step-")))


def steps_in(output: Path) -> list[int]:
    """Return the steps of a run's finished checkpoints, the first first."""
    return [int(folder.name.removeprefix("step-")) for folder in steps(output / FOLDER)]


def foreign(output: Path) -> list[Path]:
    """Return what lies among a run's checkpoints under a similar name and is none."""
    return sorted(set((output / FOLDER).glob("step-*")) - set(steps(output / FOLDER)))


def partial(path: Path) -> bool:
    """Say whether `path` is a checkpoint that was not written to its end."""
    return bool(_PARTIAL.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()


def remove(folder: Path) -> None:
    """Remove a checkpoint; what a user has put beside its files stays, and the folder with it.

    A folder without any of a checkpoint's files is not one, and stays.
    """
    with suppress(OSError):
        # First what makes it a checkpoint: one that is half removed must not be used.
        files = [path for path in folder.iterdir() if _FILES.fullmatch(path.name)]
        for path in sorted(files, key=lambda path: path.name != MANIFEST):
            path.unlink()
        if files or partial(folder):
            folder.rmdir()


def forget_after(output: Path, step: int) -> None:
    """Remove the checkpoints past `step`: the run goes on from there, and will write its own."""
    for folder in steps(output / FOLDER):
        if int(folder.name.removeprefix("step-")) > step:
            remove(folder)


def check(folder: Path) -> Checkpoint:
    """Return the checkpoint in `folder` if every byte is as it was written.

    Raises:
        DataError: Naming the file that is missing, damaged or of another schema.
    """
    path = folder / MANIFEST
    try:
        sealed = json.loads(atomic.read(path))
        text, expected = sealed["about"], sealed["sha256"]
        if hashlib.sha256(text.encode()).hexdigest() != expected:
            raise DataError(f"{path} is damaged: its checksum does not match")
        about = json.loads(text)
        for name, digest in about["sha256"].items():
            if Path(name).name != name or atomic.sha256(folder / name) != digest:
                raise DataError(f"{folder / name} is damaged: its checksum does not match")
    except OSError as error:
        raise DataError(f"{folder} is not a whole checkpoint: {error}") from None
    except MISUNDERSTOOD as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a checkpoint of manyhands: {error}") from None
    if about.get("schema") != SCHEMA:
        raise DataError(f"{path} has schema {about.get('schema')}; this version reads {SCHEMA}")
    return Checkpoint(folder, about)


def newest(output: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest whole checkpoint of a run; `say` is told what is passed over, and why."""
    for path in foreign(output):
        say(f"{path} is not a checkpoint of manyhands and is left alone")
    folders = steps(output / FOLDER)
    while folders:
        try:
            return check(folders.pop())
        except DataError as error:
            say(f"{error}; using the one before it" if folders else str(error))
    return None


def damage(output: Path) -> str:
    """Return what is wrong with each checkpoint of a run, newest first; empty if there is none."""
    reasons = []
    for folder in reversed(steps(output / FOLDER)):
        try:
            check(folder)
        except DataError as error:
            reasons.append(str(error))
    return "; ".join(reasons)
