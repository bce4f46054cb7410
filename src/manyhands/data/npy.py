"""Reads untrusted `.npy` and `.npz` files: checks sizes first, never unpickles."""

from __future__ import annotations

import lzma
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from manyhands.data.free_space import check_memory, format_bytes
from manyhands.errors import DataError

_LARGE = 1 << 30  # bytes below which an archive may hold anything
_CONSTANT = 1000  # times that deflate shrinks an array of one value; 1032 is its limit

# What a zip file may end in that is none, or asks for a password or for another compression.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError,
    NotImplementedError, RuntimeError, OverflowError, ValueError,
)  # fmt: skip


class Header(NamedTuple):
    """The header of an `.npy` file; `bytes` is the size that the whole file must have."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    bytes: int


def read_header(file: IO[bytes], name: str) -> Header:
    """Read the header of an `.npy` file, and nothing more.

    Raises:
        DataError: If it is no such file, or holds pickled objects.
    """
    try:
        if np.lib.format.read_magic(file) == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    except ValueError as error:
        raise DataError(f"{name} is no .npy file: {error}") from error
    if dtype.hasobject:
        raise DataError(f"{name} holds pickled Python objects, which are never loaded")
    size = math.prod(int(length) for length in shape) * dtype.itemsize
    return Header(shape, dtype, fortran and len(shape) > 1, file.tell() + size)


def map_rows(path: Path) -> np.ndarray:
    """Map an `.npy` file whose rows are examples.

    Raises:
        DataError: If it is missing, or not of the size and order that its header states.
    """
    try:
        with path.open("rb") as file:
            header = read_header(file, str(path))
            actual = os.fstat(file.fileno()).st_size
            if actual != header.bytes:
                raise DataError(f"{path} has {actual} bytes; its header asks for {header.bytes}")
            if not math.prod(header.shape) or not header.shape or header.fortran:
                raise DataError(f"{path} does not hold examples row after row")
            # Copy-on-write: the pages are shared and the file cannot be changed through them, yet
            # torch sees memory that may be written, and a stray write is no segmentation fault.
            return np.memmap(
                file, dtype=header.dtype, mode="c", offset=file.tell(), shape=header.shape
            )
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None


def read_npz(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of an `.npz` file, all of them or those with these names.

    Raises:
        DataError: If it is missing or damaged, if an array is pickled or larger than the file can
            hold, or if there is no memory for them.
    """
    with _open_archive(path) as archive:
        chosen = _members(archive, names)
        _check_memory(chosen.values(), path)
        try:
            return {name: _member(archive, entry, path) for name, entry in chosen.items()}
        except MemoryError:
            total = format_bytes(sum(entry.file_size for entry in chosen.values()))
            raise DataError(f"{path} takes {total} of memory, more than can be had") from None


def sizes(path: Path) -> dict[str, int]:
    """Return the size of each array of an `.npz` file, as the file declares it.

    Raises:
        DataError: If it is missing or damaged.
    """
    with _open_archive(path) as archive:
        return {name: entry.file_size for name, entry in _members(archive).items()}


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(f"{path} is a damaged .npz file: {error}") from error


def _members(
    archive: zipfile.ZipFile, names: Collection[str] | None = None
) -> dict[str, zipfile.ZipInfo]:
    """Return the files of an archive by the names of their arrays; of equal ones the last."""
    members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
    return {name: entry for name, entry in members.items() if names is None or name in names}


def _check_memory(entries: Collection[zipfile.ZipInfo], path: Path) -> None:
    """Refuse arrays that do not fit into memory, or that are suspiciously well compressed.

    What deflate shrinks by more than a thousand is one value all over: an archive made to fill a
    machine. Real data, even a one-hot table, stays below.
    """
    total = sum(entry.file_size for entry in entries)
    packed = sum(entry.compress_size for entry in entries)
    if total > _LARGE and total > _CONSTANT * packed:
        raise DataError(
            f"{path} expands from {format_bytes(packed)} to {format_bytes(total)}, as only "
            "arrays of one value do, and is not read; if that is meant, write it uncompressed, "
            "with np.savez"
        )
    check_memory(total, str(path))


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> np.ndarray:
    name = f"{path}: {entry.filename}"
    with archive.open(entry) as file:
        header = read_header(file, name)
    # The header, the archive's index and the file itself must agree before anything is allocated.
    # No deflated byte stands for more than 1032.
    largest = 1032 * min(entry.compress_size, path.stat().st_size)
    if header.bytes != entry.file_size or header.bytes > largest:
        raise DataError(
            f"{name} has {min(entry.file_size, largest)} bytes; its header asks for {header.bytes}"
        )
    with archive.open(entry) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array
