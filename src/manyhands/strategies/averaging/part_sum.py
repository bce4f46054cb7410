"""The sum of the workers' vectors in a codec's bytes, in the background of other work.

```
reduce-scatter:  worker k sends the code of part j to each worker j, and adds up part k
all-gather:      worker k sends the code of its sum to all; all decode all P sums
```

The second half may begin at another moment on every worker: its messages have a tag of their own.
What comes out does not depend on these moments.

A number is rounded once by its worker and once as a sum, however many workers there are; an
all-reduce that adds codes on the way would round at each of its steps. A worker sends 2 (P − 1)
messages of together 2 (P − 1) / P times the code's bytes, as a ring does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from manyhands.comm import Communicator
    from manyhands.comm.compression import Codec


_FIRST, _SECOND = 0, 1  # tags of the halves


class Full:
    """The codec that leaves a vector as it is."""

    name = "full"

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def nbytes(self, length: int) -> int:
        """Return the bytes of so many numbers."""
        return length * self.dtype.itemsize

    def encode(self, vector: Tensor, key: Sequence[int] = ()) -> Tensor:
        """Return a copy of the vector's bytes."""
        import torch

        return vector.clone().view(torch.uint8)

    def decode(self, message: Tensor, length: int) -> Tensor:
        """Return the vector."""
        return message.view(self.dtype)


def codec_of(precision: str, dtype: torch.dtype) -> Codec:
    """Return the codec of that name."""
    from manyhands.comm.compression import CODECS

    return Full(dtype) if precision == "full" else CODECS[precision]


class PartSum:
    """A sum in progress. Collective: all workers begin and advance the same ones in one order.

    Args:
        comm: The workers.
        vector: This worker's; it is read at once, and may be changed afterwards.
        codec: How it travels.
        key: What decides random rounding, the same on all workers.
    """

    def __init__(
        self, comm: Communicator, vector: Tensor, codec: Codec, key: Sequence[int]
    ) -> None:
        self._comm, self._codec, self._key = comm, codec, (*key, comm.rank)
        parts = vector.tensor_split(comm.size)
        self._sizes = [len(part) for part in parts]
        self._own = parts[comm.rank].clone()
        self._error = self._norm = 0.0
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._sum: Tensor | None = vector.clone() if comm.size == 1 else None
        self._second: Callable[[], None] | None = None
        codes = {rank: self._encode(parts[rank], 0) for rank in self._others if self._sizes[rank]}
        mine = self._sizes[comm.rank]
        self._codes = {rank: self._buffer(mine) for rank in self._others if mine}
        self._sent = codes  # MPI reads it until the first half ends
        self._first = comm.exchange_parts(codes, self._codes, _FIRST)

    @property
    def error(self) -> float:
        """The relative error of what this worker has sent, in the Euclidean norm."""
        return float((self._error / self._norm) ** 0.5) if self._norm else 0.0

    def arrived(self) -> bool:
        """Return whether the first half has arrived, without waiting; makes progress."""
        return self._second is not None or self._sum is not None or self._first.arrived()

    def advance(self) -> None:
        """End the first half, if it is in progress, and begin the second."""
        if self._second or self._sum is not None:
            return
        self._first()
        for code in self._codes.values():  # by rank: the same seed gives the same bits
            self._own += self._codec.decode(code, len(self._own))
        code = self._encode(self._own, 1)
        sizes = self._sizes
        self._sent = {rank: code for rank in self._others if len(self._own)}
        self._codes = {rank: self._buffer(sizes[rank]) for rank in self._others if sizes[rank]}
        self._second = self._comm.exchange_parts(self._sent, self._codes, _SECOND)
        self._codes[self._comm.rank] = code  # its own sum rounded too: the same bits on all workers

    def result(self) -> Tensor:
        """Return the sum, the same bits on every worker."""
        import torch

        if self._sum is None:
            self.advance()
            assert self._second is not None
            self._second()
            parts = [
                self._codec.decode(self._codes[rank], size).to(self._own.dtype)
                for rank, size in enumerate(self._sizes)
                if size
            ]
            self._sum = torch.cat(parts) if parts else self._own
        return self._sum

    def _buffer(self, length: int) -> Tensor:
        import torch

        return torch.empty(self._codec.nbytes(length), dtype=torch.uint8)

    def _encode(self, part: Tensor, half: int) -> Tensor:
        """Return the part's code, and note its error."""
        if not len(part):
            return self._buffer(0)
        code = self._codec.encode(part, (*self._key, half))
        if self._codec.name != "full":
            error = self._codec.decode(code, len(part)).to(part.dtype) - part
            self._error += float(error.double().square().sum())
            self._norm += float(part.double().square().sum())
        return code
