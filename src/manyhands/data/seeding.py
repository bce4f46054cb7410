"""Random numbers that depend on a key: torch's, NumPy's and Python's generators."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seed_of(*key: int) -> int:
    """Return a seed of 64 bits for a key."""
    digest = hashlib.blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def reseed(*key: int) -> None:
    """Let all generators of the CPU begin where `key` says."""
    import torch

    seed = seed_of(*key)
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Let all generators begin where `key` says, and go on afterwards where they were."""
    import torch

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    reseed(*key)
    if gpu is not None:
        torch.cuda.manual_seed(seed_of(*key))
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if gpu is not None:
            torch.cuda.set_rng_state(gpu)
