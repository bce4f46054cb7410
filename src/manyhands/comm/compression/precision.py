"""Half precision on the wire: float16 with a common exponent, and bfloat16.

    bytes for n numbers:   bf16  2 n      fp16  2 n + 4

Both round to nearest, ties to even.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_TOP = 15  # float16 reaches nearly 2**16; scaled numbers stay below 2**15
_LEAST = -96  # of an exponent: 2**(_TOP - _LEAST) is finite in float32


class BFloat16:
    """bfloat16: float32's range with 8 bits of precision.

    Relative error at most 2⁻⁹, unless the number is subnormal. A number that rounds past the
    largest becomes infinite.
    """

    name = "bf16"

    def nbytes(self, length: int) -> int:
        """Return the bytes of the message for so many numbers."""
        return 2 * length

    def encode(self, vector: Tensor, key: Sequence[int] = ()) -> Tensor:
        """Return the message for `vector`; `key` has no effect."""
        return vector.to(torch.float32).to(torch.bfloat16).view(torch.uint8)

    def decode(self, message: Tensor, length: int) -> Tensor:
        """Return the vector of a message."""
        return message.view(torch.bfloat16).to(torch.float32)


class Float16:
    """float16 with one exponent for the whole message: 11 bits of precision.

        m  ← max |x_i|;  e ← the least integer with m < 2^e
        send e, and x · 2^(15 − e) as float16

    So nothing overflows, and what is small beside the whole message does not vanish: relative error
    at most 2⁻¹¹ down to m · 2⁻²⁹, and below that an absolute error of at most m · 2⁻³⁹ (both of
    them for m above 2⁻⁹⁶). Scaling by a power of two is exact.
    """

    name = "fp16"

    def nbytes(self, length: int) -> int:
        """Return the bytes of the message for so many numbers."""
        return 4 + 2 * length

    def encode(self, vector: Tensor, key: Sequence[int] = ()) -> Tensor:
        """Return the message for `vector`; `key` has no effect."""
        single = vector.to(torch.float32)
        exponent = _exponent(single)
        message = torch.empty(self.nbytes(len(vector)), dtype=torch.uint8)
        message[:4].view(torch.int32)[0] = exponent
        message[4:].view(torch.float16).copy_(single * 2.0 ** (_TOP - exponent))
        return message

    def decode(self, message: Tensor, length: int) -> Tensor:
        """Return the vector of a message."""
        exponent = int(message[:4].view(torch.int32)[0])
        return message[4:].view(torch.float16).to(torch.float32).mul_(2.0 ** (exponent - _TOP))


def _exponent(vector: Tensor) -> int:
    """Return the least e with max |x| < 2^e, within what the scaling allows."""
    largest = float(torch.linalg.vector_norm(vector, math.inf)) if len(vector) else 0.0
    if largest == 0.0 or not math.isfinite(largest):
        return _TOP
    return max(_LEAST, math.frexp(largest)[1])
