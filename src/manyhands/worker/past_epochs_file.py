"""The epochs of a long run: the last ones are in a checkpoint, the others in a file beside it.

So the size of a checkpoint does not depend on the number of epochs. A run that resumes from an
earlier checkpoint ignores what was written later.
"""

from __future__ import annotations

import json
import os
import re
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.errors import DataError

if TYPE_CHECKING:
    from manyhands.worker.clock import Epoch

BLOCK = 64  # epochs that are written at a time
NAME = re.compile(r"epochs-\d+-\d+")


class EpochFile:
    """A file of epochs that are over, a JSON object a line. It is made when there are enough.

    Args:
        folder: Where it is. By default there is no file, and a checkpoint has all epochs.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.name = folder, ""
        self._count, self._bytes, self._checksum = 0, 0, 0
        self._handle: int | None = None

    def state(self, epochs: Sequence[Epoch], number: int, step: int) -> dict[str, Any]:
        """Return what a checkpoint holds of these epochs: the last ones, and where the others are.

        Args:
            epochs: All epochs of a worker; only the last one may still change.
            number: The worker's number.
            step: The steps that it has done.
        """
        if self.folder and len(epochs) - self._count >= 2 * BLOCK:
            self.name = self.name or f"epochs-{number}-{step}"
            end = (len(epochs) - 1) // BLOCK * BLOCK
            self._append(epochs[self._count : end])
        rows = [asdict(epoch) for epoch in epochs[self._count :]]
        if not self._count:
            return {"epochs": rows}
        about = {"count": self._count, "bytes": self._bytes, "checksum": self._checksum}
        return {"epochs": rows, "epochs_before": {"file": self.name, **about}}

    def _append(self, epochs: Sequence[Epoch]) -> None:
        text = "".join(json.dumps(asdict(epoch)) + "\n" for epoch in epochs).encode()
        view, place = memoryview(text), self._bytes
        while view:
            done = os.pwrite(self._opened(), view, place)
            view, place = view[done:], place + done
        self._checksum = zlib.crc32(text, self._checksum)
        self._count += len(epochs)
        self._bytes += len(text)

    def _opened(self) -> int:
        if self._handle is None:
            assert self.folder
            self.folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(self.folder / self.name, flags, 0o666)
            weakref.finalize(self, os.close, self._handle)
        return self._handle

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        if self._handle is not None:
            os.fsync(self._handle)

    def restore(self, before: Mapping[str, Any], number: int) -> None:
        """Continue the file of a checkpoint, if this worker has written it."""
        if self.folder and str(before.get("file", "")).startswith(f"epochs-{number}-"):
            self.name, self._count = before["file"], before["count"]
            self._bytes, self._checksum = before["bytes"], before["checksum"]


def read(folder: Path, before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the epochs that precede those in a checkpoint; `folder` holds the file.

    Raises:
        DataError: The file is missing, or is not as it was when the checkpoint was written.
    """
    name, size = before["file"], before["bytes"]
    if not NAME.fullmatch(name):
        raise DataError(f"{folder} has no file of epochs {name!r}")
    path = folder / name
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            text = file.read(size)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {_REMEDY}") from None
    if zlib.crc32(text) != before["checksum"]:
        raise DataError(f"{path} has been changed; {_REMEDY}")
    return [json.loads(line) for line in text.splitlines()]


_REMEDY = (
    "it holds the first epochs of the run, without which it cannot be resumed: restore the file, "
    "or start a new run"
)
