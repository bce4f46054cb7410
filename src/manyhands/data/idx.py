"""IDX files, the format in which MNIST is published, plain or gzipped.

bytes 0-1   zero
byte  2     type of the numbers
byte  3     number of dimensions d
4 × d       their lengths, big-endian, then the numbers, big-endian
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from manyhands.errors import DataError

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
LARGEST = 4 << 30  # bytes
DEFLATE = 1032  # no byte of a gzip file stands for more bytes than this


def read(path: str | os.PathLike[str]) -> np.ndarray:
    """Read an IDX file; a name that ends in `.gz` is decompressed.

    Nothing is allocated on the word of the header alone: what it declares must fit the file's size,
    or for a compressed file what that size could hold at most.

    Raises:
        DataError: If the file is no IDX file, or is shorter or longer than its header declares.
    """
    path = Path(path)
    size = path.stat().st_size
    try:
        if path.suffix != ".gz":
            with path.open("rb") as file:
                return _array(file, path, held=size)
        with gzip.open(path, "rb") as unpacked:
            return _array(unpacked, path, held=size * DEFLATE)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} ({size} bytes) is a damaged gzip file: {error}") from error


def _array(file: IO[bytes] | gzip.GzipFile, path: Path, *, held: int) -> np.ndarray:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        raise DataError(
            f"{path} begins with {magic.hex(' ') or 'nothing'}; expected an IDX file's 00 00, "
            "a type and the number of dimensions"
        )
    lengths = file.read(4 * magic[3])
    header = 4 + 4 * magic[3]
    if 4 + len(lengths) < header:
        raise DataError(
            f"{path} ends in its header: expected {header} bytes, found {4 + len(lengths)}"
        )
    shape = tuple(np.frombuffer(lengths, dtype=">u4").tolist())
    dtype = np.dtype(TYPES[magic[2]])
    declared = math.prod(shape) * dtype.itemsize
    if header + declared > min(held, LARGEST):
        raise DataError(
            f"{path}: its header declares {shape}, expected {header + declared} bytes, "
            f"but the file holds {min(held, LARGEST)} at most"
        )
    data = file.read(declared + 1)
    if len(data) != declared:
        more = " or more" if len(data) > declared else ""
        raise DataError(
            f"{path}: its header declares {shape}, expected {header + declared} bytes, "
            f"found {header + len(data)}{more}"
        )
    return np.frombuffer(data, dtype=dtype).reshape(shape).astype(dtype.newbyteorder("="))
