"""Eight bits on the wire, rounded at random so that the expectation is exact.

QSGD (Alistarh et al. 2017, arXiv 1610.02132) in blocks, with the largest number as the scale:

    for each block b of B numbers:
        s_b ← max |x_i| / 127
        q_i ← ⌊x_i / s_b + u_i⌋,  u_i uniform in [0, 1)
    send s and q;  received: x'_i = s_b q_i

    bytes for n numbers:   n + 4 ⌈n / B⌉,  B = 1024

Guarantees: E[x'_i] = x_i up to float32's rounding, |x'_i − x_i| < s_b, and zeros stay zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

BLOCK = 1024
_MOST = 127


class Int8:
    """int8 with a scale per block and stochastic rounding."""

    name = "int8"

    def nbytes(self, length: int) -> int:
        """Return the bytes of the message for so many numbers."""
        return 4 * -(-length // BLOCK) + length

    def encode(self, vector: Tensor, key: Sequence[int] = ()) -> Tensor:
        """Return the message for `vector`, rounded by random numbers that `key` decides."""
        length, blocks = len(vector), -(-len(vector) // BLOCK)
        x = torch.zeros(blocks, BLOCK)
        x.view(-1)[:length] = vector
        message = torch.empty(self.nbytes(length), dtype=torch.uint8)
        s = message[: 4 * blocks].view(torch.float32)
        torch.div(torch.linalg.vector_norm(x, torch.inf, dim=1), _MOST, out=s)
        # Where the scale is 0 or not finite, what is decoded does not depend on q.
        usable = torch.where((s > 0) & s.isfinite(), s, torch.ones(()))
        x.div_(usable[:, None]).view(-1)[:length].add_(_uniform(key, length))
        q = x.floor_().clamp_(-_MOST, _MOST).nan_to_num_(0.0).view(-1)[:length]
        message[4 * blocks :].view(torch.int8).copy_(q)
        return message

    def decode(self, message: Tensor, length: int) -> Tensor:
        """Return the vector of a message."""
        blocks = -(-length // BLOCK)
        s = message[: 4 * blocks].view(torch.float32)
        x = torch.zeros(blocks, BLOCK)
        x.view(-1)[:length] = message[4 * blocks :].view(torch.int8)
        s = torch.where(s.isfinite(), s, torch.full((), torch.nan))
        return x.mul_(s[:, None]).view(-1)[:length]


def _uniform(key: Sequence[int], length: int) -> Tensor:
    """Return numbers in [0, 1) that `key` decides."""
    generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence(key)))
    return torch.from_numpy(generator.random(length, dtype=np.float32))
