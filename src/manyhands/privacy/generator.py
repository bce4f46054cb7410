"""Gives PyTorch's generators a secret that cannot be tried out.

`Masks` computes dropout from the run's secret key. Whatever else a model draws (attention's own
dropout, dropout between the layers of an LSTM, dropout where dimension 0 does not count the
examples, random calls of its own) comes from PyTorch's generators. On the CPU that is a Mersenne
Twister, of whose seed `torch.manual_seed` uses 32 bits: all of its states could be tried. So its
whole state is set here.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

_WORDS = 624  # of the state, 32 bits in 64 each
_OFFSET = 24  # bytes before them: the seed, what is left of the words, and the next of them


def seed_secretly(key: bytes) -> None:
    """Set the state of PyTorch's generators from a secret key.

    On the CPU all 19,968 bits of it; on GPUs the 64 bits that their generator takes for a seed.
    """
    torch.manual_seed(int.from_bytes(hashlib.shake_256(b"gpu" + key).digest(8), "little"))
    words = np.frombuffer(hashlib.shake_256(b"cpu" + key).digest(4 * _WORDS), dtype="<u4")
    state = torch.get_rng_state().numpy()
    state[_OFFSET : _OFFSET + 8 * _WORDS] = words.astype("<u8").view(np.uint8)
    torch.set_rng_state(torch.from_numpy(state))
