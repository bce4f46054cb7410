"""The interface of a codec: a vector as a message of fewer bytes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Codec(Protocol):
    """Turns flat vectors into messages, number by number or block by block.

    A message is a uint8 tensor whose length depends on that of the vector alone, so the receiver
    can allocate it. Vectors are in the host's memory, and of any floating type; what is decoded has
    float32's precision or less. What is not finite stays so: a run that diverges is noticed.
    """

    name: str

    def nbytes(self, length: int) -> int:
        """Return the bytes of the message for so many numbers."""

    def encode(self, vector: Tensor, key: Sequence[int] = ()) -> Tensor:
        """Return the message for `vector`, shape (n,); the same `key` gives the same bits.

        Codecs that round at random take their random numbers from `key`: non-negative integers,
        such as (seed, step, rank).
        """

    def decode(self, message: Tensor, length: int) -> Tensor:
        """Return the float32 vector of a message, shape (length,); it may share its memory."""
