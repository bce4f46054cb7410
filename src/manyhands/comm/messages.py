"""Point-to-point messages that never block, and waiting that yields the core.

MPI's own waiting spins. That is right where every process has a core of its own; a master that
waits for its workers, or a worker for an answer, would take one from somebody who computes. So we
ask, and between two questions yield, then sleep, longer and longer.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mpi4py import MPI

from manyhands.allreduce.hidden_communicator import channel
from manyhands.comm.mpi import MPICommunicator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from manyhands.comm import Communicator

_SPINS = {True: 8, False: 2000}  # questions before the first sleep, by whether cores are shared
_SHORTEST, _LONGEST = 50e-6, 500e-6  # seconds of one sleep, which itself costs about 10e-6
_HEADER = 6
_PARCEL, _NOTE = 0, 1  # tags


class Parcel:
    """A reusable message: six whole numbers, then a part of the vector.

    It may travel in pieces, from the end of the vector to its beginning: what a backward pass
    knows first goes first, and the header comes with the last.

    Args:
        like: What the body is like.
        cuts: Where in the body a new piece begins, ascending; none: it travels in one.

    Attributes:
        header: (6,) int64.
        body: The part of the vector; shape (count,).
        pieces: The pieces in the order in which they travel.
    """

    def __init__(self, like: Tensor, cuts: Sequence[int] = ()) -> None:
        numbers = like.numpy()
        self.buffer = np.zeros(8 * _HEADER + numbers.nbytes, dtype=np.uint8)
        self.header = self.buffer[: 8 * _HEADER].view(np.int64)
        self.body = torch.from_numpy(self.buffer[8 * _HEADER :].view(numbers.dtype))
        edges = [0, *(8 * _HEADER + cut * numbers.itemsize for cut in cuts), self.buffer.nbytes]
        self.pieces = [self.buffer[a:b] for a, b in reversed(list(pairwise(edges)))]

    @property
    def nbytes(self) -> int:
        """The size of the message."""
        return self.buffer.nbytes


class Messages:
    """Sends and receives parcels on a private duplicate of the group's communicator. Collective."""

    def __init__(self, group: Communicator) -> None:
        if not isinstance(group, MPICommunicator):
            raise TypeError(f"messages need a group over MPI, not {type(group).__name__}")
        private = channel(group.comm)
        self.comm, self.spins = private.comm, _SPINS[private.crowded]

    def send_note(self, note: np.ndarray, to: int) -> Any:
        """Begin to send a few numbers, apart from all parcels."""
        return self.comm.Isend(note, to, tag=_NOTE)

    def receive_note(self, note: np.ndarray, source: int) -> Any:
        """Begin to receive a few numbers, apart from all parcels."""
        return self.comm.Irecv(note, source, tag=_NOTE)

    def send(self, parcel: Parcel, to: int) -> Any:
        """Begin to send; the parcel must stay as it is until the request is complete."""
        return self.comm.Isend(parcel.buffer, to)

    def receive(self, parcel: Parcel, source: int) -> Any:
        """Begin to receive."""
        return self.comm.Irecv(parcel.buffer, source, tag=_PARCEL)

    def send_piece(self, piece: np.ndarray, to: int) -> Any:
        """Begin to send a piece of a parcel; pieces arrive in the order in which they are sent."""
        return self.comm.Isend(piece, to)

    def receive_pieces(self, parcel: Parcel, source: int) -> list[Any]:
        """Begin to receive a parcel piece by piece; the last request is that of the header."""
        return [self.comm.Irecv(piece, source, tag=_PARCEL) for piece in parcel.pieces]

    def wait(self, request: Any) -> None:
        """Return when the request is complete."""
        asked = 0
        while not request.Test():
            asked += 1
            self._pause(asked)

    def wait_some(self, requests: Sequence[Any]) -> list[int]:
        """Return the indices of the complete requests, once there is at least one.

        MPICH stops looking at the first that it finds; so we look until there are no more.
        """
        asked = 0
        while not (done := MPI.Request.Testsome(requests)):
            asked += 1
            self._pause(asked)
        while more := MPI.Request.Testsome(requests):
            done += more
        return done

    def _pause(self, asked: int) -> None:
        if asked < self.spins:
            os.sched_yield()
        else:
            time.sleep(min(_LONGEST, _SHORTEST * (1 + (asked - self.spins) // 2)))

    def wait_all(self, requests: list[Any]) -> None:
        """Return when all are complete."""
        left = len(requests)
        while left:
            left -= len(self.wait_some(requests))
