"""A window of memory shared by the processes of one host, and flags in it to wait on.

Each rank owns a part: a line of flags, slots for what the others shall reduce (inputs) and slots
for what it has reduced (results). Work goes round by round through the slots, so that the window
stays small enough for the caches, whatever the size of the array. A flag holds the number of rounds
its rank has completed; it only grows. Only its owner writes a slot or a flag; but of two ranks each
reduces in the other's input, where the other takes it from: less memory, and no results.

Memory is ordered by `Win.Sync` on both sides: data, sync, flag; flag, sync, data. x86 would do
without, Arm would not.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from manyhands.allreduce.buffers import Array
from manyhands.errors import LaunchError
from manyhands.launch.resources import free_shared_memory, shared_shortage

LEAST_SLOT = 384 << 10  # bytes of an array that is reduced in one round (`fits_one_round`)
SLOT = 1 << 20  # bytes of the array in one round: as much as stays in a core's second-level cache
WIDE = 4 << 20  # the same for two processes on Arm: what they write stays in what caches they share
_ARM = ("aarch64", "arm64")
INPUTS, RESULTS = 2, 3
OF_TWO = 3  # inputs where there are no results
_ROOMY = 1 << 30  # bytes left to share from which on two processes have the wide ones

COPIED, REDUCED = 0, 8  # where the two flags are, in words of 8 bytes, on cache lines of their own
_HEADER = 128
_SPINS = 2000  # about 100 µs: longer than a round takes when every process has a core
_YIELDS = 1000  # about 1 ms: after that a wait is long and a late wake-up matters little
_NAP = 50e-6
_NEAR = 100e-6  # around the moment when the last one is expected: a nap may overrun by as much
_BLINK = 10e-6  # to which Linux adds 50 µs
_VIEWS = 64  # how many sets of views are kept: one for each length, dtype and place in the cycle

Views = TypeVar("Views")


def slot_bytes(size: int, free: float = math.inf, machine: str = platform.machine()) -> int:
    """Return the bytes of the array in one round of `size` processes that share memory only.

    Fewer rounds are fewer waits, which is worth it for two on Arm; measured. But where only `free`
    bytes can be shared, as in containers, the windows of many communicators must fit.
    """
    if size == 2 and machine in _ARM and free >= _ROOMY:
        return WIDE
    return SLOT if free >= size * part_bytes(size, size, SLOT) else LEAST_SLOT


def part_bytes(size: int, lanes: int, slot: int) -> int:
    """Return the bytes of one rank's part of the window of `size` ranks."""
    inputs, results = (OF_TWO, 0) if size == 2 else (INPUTS, RESULTS)
    return _HEADER + inputs * slot + results * piece_bytes(lanes, slot)


def piece_bytes(lanes: int, slot: int = SLOT) -> int:
    """Return the bytes each of `lanes` ranks reduces in one round, in whole cache lines."""
    return slot // lanes // 64 * 64


def _expect_room(comm: Any, need: int) -> None:
    """Refuse, on all ranks, a window that would not fit: writing into it would be a bus error."""
    free = comm.bcast(free_shared_memory() if comm.rank == 0 else None)
    if free < need:
        what = f"an all-reduce of {comm.size} processes in shared memory"
        raise LaunchError(shared_shortage(free, need, what, "choose allreduce 'mpi'"))


class Window:
    """The window of one group.

    Attributes:
        round: How many rounds this rank has begun; the same on all ranks between calls.
        cycle: After how many rounds all slots are the same again.
        pair: Whether there are two ranks, who reduce in each other's inputs.
    """

    def __init__(self, comm: Any, crowded: bool, lanes: int, slot: int = SLOT) -> None:
        from mpi4py import MPI

        self.lanes, self._slot = lanes, slot
        self.rank, self.size = comm.rank, comm.size
        self.pair = comm.size == 2
        self._inputs, results = (OF_TWO, 0) if self.pair else (INPUTS, RESULTS)
        self.cycle = math.lcm(self._inputs, results or 1)
        self.piece = piece_bytes(lanes, slot)
        self._comm = comm
        self._spins = 0 if crowded else _SPINS
        self._crowded = crowded
        length = part_bytes(comm.size, lanes, slot)
        _expect_room(comm, length * comm.size)
        self._win = MPI.Win.Allocate_shared(length, 1, comm=comm)
        # MPI lays the parts one behind the other, by rank.
        first: Any = self._win.Shared_query(0)[0]
        everyones: Any = MPI.buffer.fromaddress(first.address, length * comm.size)
        whole = memoryview(everyones).cast("B")
        self._parts = np.frombuffer(whole, np.uint8).reshape(comm.size, length)  # (P, bytes)
        flags = [whole[at : at + _HEADER].cast("q") for at in range(0, whole.nbytes, length)]
        self._mine = flags[comm.rank]
        self._others = [flag for rank, flag in enumerate(flags) if rank != comm.rank]
        self._mine[COPIED] = self._mine[REDUCED] = 0
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._win.Sync()
        comm.Barrier()
        self.round = 0
        self._met = self._due = 0.0  # when all had come with their inputs, and will have again
        self._views: dict[tuple[Any, ...], Any] = {}

    def inputs(self, number: int, dtype: np.dtype[Any]) -> Array:
        """Return every rank's input slot for round `number`; shape (P, items)."""
        start = number % self._inputs * self._slot
        return self._typed(start, self._slot, dtype)

    def results(self, number: int, dtype: np.dtype[Any]) -> Array:
        """Return the same of the result slots, in a group of more than two."""
        start = INPUTS * self._slot + number % RESULTS * self.piece
        return self._typed(start, self.piece, dtype)

    def kept(self, key: tuple[Any, ...], make: Callable[[], Views]) -> Views:
        """Return the views of the slots that are known by `key`, made when first asked for.

        Making views takes longer than moving some kilobytes.
        """
        views: Views | None = self._views.get(key)
        if views is None:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            views = self._views[key] = make()
        return views

    def signal(self, flag: int, value: int) -> None:
        """Publish what was written so far, and that this rank has reached `value`."""
        self._win.Sync()
        self._mine[flag] = value

    def wait(self, flag: int, value: int) -> None:
        """Wait until all others have reached `value`; what they wrote before is then readable."""
        for theirs in self._others:
            if theirs[flag] < value:
                self._linger(theirs, flag, value)
        self._win.Sync()
        if flag == COPIED and value == self.round:  # once a call, since calls come step by step
            now = time.monotonic()
            self._due, self._met = 2 * now - self._met, now

    def come(self, flag: int, value: int) -> bool:
        """Return whether all others have reached `value`, without waiting."""
        for theirs in self._others:
            if theirs[flag] < value:
                return False
        self._win.Sync()
        return True

    def _linger(self, theirs: memoryview, flag: int, value: int) -> None:
        turns = 0
        while theirs[flag] < value:
            turns += 1
            if turns <= self._spins:
                continue
            if not self._crowded:
                if abs(time.monotonic() - self._due) < _NEAR:
                    continue
                time.sleep(_BLINK)  # the others' cores are faster when this one rests
            else:
                os.sched_yield()
                if turns > _YIELDS:
                    time.sleep(_NAP)
            if not self._crowded or turns % 16 == 0:
                # The other may itself be waiting for a message of ours, sent before this call: only
                # a call of MPI moves that on.
                self._comm.Iprobe()

    def _typed(self, start: int, nbytes: int, dtype: np.dtype[Any]) -> Array:
        whole = nbytes - nbytes % dtype.itemsize
        return self._parts[:, _HEADER + start : _HEADER + start + whole].view(dtype)

    def free(self) -> None:
        """Free the window; all ranks together."""
        self._parts, self._others = np.empty((0, 0), np.uint8), []
        self._views.clear()
        self._win.Unlock_all()
        self._win.Free()
