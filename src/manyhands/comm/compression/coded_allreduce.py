"""An all-reduce whose messages are coded: reduce-scatter, then all-gather, each in one round.

    cut x into P pieces; this worker has rank r
    send encode(x[j]) to each other worker j;  receive theirs
    y ← x[r] + Σ decode(received)                          in the order of the ranks
    send encode(y) to all others;  receive theirs
    x[j] ← decode(encode(y) of worker j), for every j, r included

Sums are in float32 however few bits a message has. Each number is rounded twice: before and after
the summation.

Bytes sent by each of P workers, for n numbers of b coded bytes: 2 (P − 1) / P · n b, as with the
ring; P − 1 messages twice; 2 steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyhands.allreduce.buffers import cuts
from manyhands.comm.communicator import Communicator
from manyhands.comm.compression.codec import Codec
from manyhands.comm.compression.compressor import Compressor


class Coded(Compressor):
    """Sums vectors by coded messages; it keeps nothing between steps.

    Args:
        codec: Encodes the messages.
        seed: Of codecs that round at random.
    """

    def __init__(self, codec: Codec, *, seed: int = 0) -> None:
        self.name = codec.name
        self._codec, self._seed = codec, seed

    def _sum(self, vector: Tensor, comm: Communicator, step: int) -> None:
        codec, rank, size = self._codec, comm.rank, comm.size
        bounds, key = cuts(len(vector), size), (self._seed, step, rank)
        pieces = [vector[bounds[j] : bounds[j + 1]] for j in range(size)]
        others = [j for j in range(size) if j != rank]

        incoming = {j: _empty(codec, len(pieces[rank])) for j in others}
        arrivals = []
        for j in others:  # the next is encoded while the last travels
            message = codec.encode(pieces[j], (*key, j))
            arrivals.append(comm.exchange(message, {j: incoming[j]}))
        for arrive in arrivals:
            arrive()
        y = torch.zeros(len(pieces[rank]))
        for j in range(size):
            y += pieces[rank] if j == rank else codec.decode(incoming[j], len(y))

        incoming = {j: _empty(codec, len(pieces[j])) for j in others}
        mine = codec.encode(y, (*key, rank))
        comm.exchange(mine, incoming)()
        for j, piece in enumerate(pieces):
            piece.copy_(codec.decode(mine if j == rank else incoming[j], len(piece)))


def _empty(codec: Codec, length: int) -> Tensor:
    return torch.empty(codec.nbytes(length), dtype=torch.uint8)
