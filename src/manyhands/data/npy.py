"""`.npy` and `.npz` files from anywhere: sizes are checked first, and no pickle is ever run."""

from __future__ import annotations

import lzma
import math
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from manyhands.errors import DataError

# What a zip file may end in that is none, or asks for a password or for another compression.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError,
    NotImplementedError, RuntimeError, OverflowError, ValueError,
)  # fmt: skip


class Header(NamedTuple):
    """What an `.npy` file says of itself; `bytes` is the size the whole file must have."""

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


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an `.npz` file.

    Raises:
        DataError: If it is missing or damaged, or if an array is pickled or larger than the file
            can hold.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                entry.filename.removesuffix(".npy"): _member(archive, entry, path)
                for entry in archive.infolist()
            }
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(f"{path} is a damaged .npz file: {error}") from error


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
