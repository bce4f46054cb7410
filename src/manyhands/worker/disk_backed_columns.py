"""Columns of numbers that grow with every step, on disk: they take no more memory for it.

The last numbers of a column are in memory, the others in a file. A checkpoint holds the last
numbers, how many precede them, and a checksum of these. So its size does not depend on the number
of steps, and a run that resumes from an earlier checkpoint ignores what was written later.
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    pass


TIMES = ("begun", "computed", "entered", "exchanged", "updated", "waited")  # of a worker's clock
BLOCK = 512  # numbers of a column that are written at a time
COLUMNS = 8  # at most, in one file
_BYTES = 8  # of a number


class StepFile:
    """A file of blocks. Block b of column c is number COLUMNS * b + c.

    Args:
        path: Where it is. By default it has no name and is gone when the process ends.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._handle: int | None = None

    def write(self, column: int, block: int, numbers: bytes) -> None:
        """Write one block.

        Raises:
            OSError: Naming the folder, where there is no room.
        """
        view, place = memoryview(numbers), _offset(column, block * BLOCK)
        try:
            while view:
                done = os.pwrite(self._opened(), view, place)
                view, place = view[done:], place + done
        except OSError as error:
            where = self.path or f"{tempfile.gettempdir()} (set TMPDIR to another folder)"
            text = f"cannot write the history of steps to {where}: {error.strerror}"
            raise OSError(error.errno, text) from error

    def read(self, column: int, start: int, stop: int) -> np.ndarray:
        """Return numbers `start` to `stop` of a column; fewer if the file is shorter."""
        rows = []
        while start < stop:
            end = min(stop, (start // BLOCK + 1) * BLOCK)
            length = (end - start) * _BYTES
            part = os.pread(self._opened(), length, _offset(column, start))
            rows.append(np.frombuffer(part[: len(part) // _BYTES * _BYTES], dtype=np.float64))
            start = end if len(part) == length else stop
        return np.concatenate(rows) if rows else np.empty(0)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        if self._handle is not None and self.path:
            os.fsync(self._handle)

    def _opened(self) -> int:
        if self._handle is None:
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._handle = os.open(self.path, flags, 0o666)
            else:
                with tempfile.TemporaryFile() as file:
                    self._handle = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._handle)
        return self._handle


def _offset(column: int, number: int) -> int:
    block, inside = divmod(number, BLOCK)
    return ((block * COLUMNS + column) * BLOCK + inside) * _BYTES


class Column(Sequence[Any]):
    """A list of numbers, one for each step; None stands for an unknown one.

    Only the end can be changed: at least the last BLOCK numbers, where there are so many.

    >>> column = Column([1.0, None])
    >>> column.append(2.0)
    >>> column[-1], column == [1.0, None, 2.0], len(column)
    (2.0, True, 3)
    """

    def __init__(self, values: Iterable[float | None] = ()) -> None:
        self._file, self._place = StepFile(), 0
        self._written, self._checksum = 0, 0
        self._last = array("d")
        for value in values:
            self.append(value)

    def keep_in(self, file: StepFile, place: int) -> None:
        """Write to this file from now on, as its column number `place`; only while empty."""
        assert not len(self)
        self._file, self._place = file, place

    def append(self, value: float | None) -> None:
        """Add a number."""
        self._last.append(math.nan if value is None else value)
        if len(self._last) >= 2 * BLOCK:
            self._write()

    def extend(self, values: np.ndarray) -> None:
        """Add many numbers, of which NaN are unknown."""
        for start in range(0, len(values), BLOCK):
            self._last.frombytes(values[start : start + BLOCK].astype(np.float64).tobytes())
            if len(self._last) >= 2 * BLOCK:
                self._write()

    def _write(self) -> None:
        numbers = self._last[:BLOCK].tobytes()
        self._file.write(self._place, self._written // BLOCK, numbers)
        self._checksum = zlib.crc32(numbers, self._checksum)
        self._written += BLOCK
        del self._last[:BLOCK]

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return some of the numbers; NaN stands for an unknown one."""
        start, stop, _ = slice(start, stop).indices(len(self))
        before = self._file.read(self._place, start, min(stop, self._written))
        last = self._last[max(0, start - self._written) : max(0, stop - self._written)]
        return np.concatenate([before, np.array(last)])

    def state(self) -> tuple[np.ndarray, tuple[int, int]]:
        """Return the numbers in memory; how many are in the file, and their checksum."""
        return np.array(self._last), (self._written, self._checksum)

    def restore(self, last: np.ndarray, written: int = 0, checksum: int = 0) -> bool:
        """Continue from a state; returns whether the file still has its numbers."""
        self.clear()
        computed = 0
        for start in range(0, written, BLOCK):
            computed = zlib.crc32(
                self._file.read(self._place, start, start + BLOCK).tobytes(), computed
            )
        if computed != checksum:
            return False
        self._written, self._checksum = written, checksum
        self.extend(last)
        return True

    def clear(self) -> None:
        """Forget all numbers."""
        self._written, self._checksum, self._last = 0, 0, array("d")

    def __len__(self) -> int:
        return self._written + len(self._last)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return [self[i] for i in range(start, stop, step)]
        if index < 0 and -index <= len(self._last):  # the usual case
            value = self._last[index]
        else:
            at = range(len(self))[index]
            value = float(self.read(at, at + 1)[0])
        return None if math.isnan(value) else value

    def __setitem__(self, index: int, value: float) -> None:
        self._last[range(len(self))[index] - self._written] = value

    def __delitem__(self, index: slice) -> None:
        start, stop, step = index.indices(len(self))
        assert step == 1
        assert stop == len(self)
        assert start >= self._written
        del self._last[start - self._written :]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), BLOCK):
            for value in self.read(start, start + BLOCK).tolist():
                yield None if math.isnan(value) else value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.read().astype(dtype or np.float64)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Column | list):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Column({list(self)})"
