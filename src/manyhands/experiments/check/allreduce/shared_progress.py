"""A file that the checked processes and their supervisor share: where each process is.

The supervisor decides; processes only count. Each word has one writer.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from manyhands.allreduce.buffers import Array

FILE = "board"

# What a process is doing.
IDLE, COMPUTING, POLLING, BLOCKED, FAILED = range(5)

# The supervisor's words.
ABANDONED, STOP, BUFFERED, DUMP = range(4)
_HEADER = 8
# A process's words.
CASE, PROGRESS, POLLS, STATE, DONE, DUMPED, STRAY = range(7)
_WORDS = 8


class Board:
    """Where `size` processes are.

    Attributes:
        orders: The supervisor's words: the case to abandon; whether to stop; whether sends are
            buffered; the case in which to write where one is.
        ranks: A row of words per process: its case; the MPI calls completed; the times it asked
            for a message; what it does; the last case that it ended; the last in which it wrote
            where it was; the last in which it may have left messages behind.
    """

    def __init__(self, folder: Path, size: int, *, create: bool = False) -> None:
        path = folder / FILE
        if create:
            path.write_bytes(bytes(8 * (_HEADER + _WORDS * size)))
        with path.open("r+b") as file:
            words: Array = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
        self.orders = words[:_HEADER]
        self.ranks = words[_HEADER:].reshape(size, _WORDS)
        if create:
            self.orders[[ABANDONED, DUMP]] = -1
            self.ranks[:, [CASE, DONE, DUMPED, STRAY]] = -1
