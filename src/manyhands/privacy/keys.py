"""Secret randomness: keys from the operating system, never written anywhere.

What is sampled must be secret for its privacy to be amplified, and noise that can be drawn again
can be taken off again. PyTorch's own generator on the CPU is seeded with 32 bits, which can be
tried out; so samples and noise come from here.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np

BYTES = 32


def new_key() -> bytes:
    """Return a new key."""
    return os.urandom(BYTES)


def derive_key(key: bytes, *purpose: int | str) -> bytes:
    """Return the key for one purpose; it reveals nothing about the others."""
    return hashlib.blake2b(repr(purpose).encode(), key=key, digest_size=BYTES).digest()


def fixed_key(number: int) -> bytes:
    """Return a reproducible key: for tests, never for a private run."""
    return hashlib.blake2b(b"%d" % number, digest_size=BYTES).digest()


class PoissonSample:
    """Draws the records of a step: each with the same probability, independently.

    Args:
        key: Secret; workers that share it draw the same.
        rate: The probability; rounded down to a multiple of 2⁻⁶⁴.
        secure: Take the bits from SHAKE-256, a cryptographic generator, instead of Philox.
    """

    def __init__(self, key: bytes, rate: float, *, secure: bool) -> None:
        self.key, self.rate, self.secure = key, rate, secure

    def draw(self, count: int, *step: int) -> np.ndarray:
        """Return which of `count` records a step takes; int64 indices in order."""
        if self.rate >= 1:
            return np.arange(count)
        bits = _Bits(derive_key(self.key, "sample", *step), secure=self.secure)
        # A number of 64 bits is below the rate's if its first 16 are, or if they are the same and
        # the other 48 are below: those are drawn only then, for one in 65,536 records.
        first, rest = divmod(int(self.rate * 2.0**64), 1 << 48)
        heads = bits.words(-(-count // 4)).view("<u2")[:count]
        taken = heads < first
        (open_,) = np.nonzero(heads == first)
        taken[open_] = bits.words(len(open_)) >> np.uint64(16) < np.uint64(rest)
        return np.flatnonzero(taken)


class _Bits:
    """A stream of random bits that belongs to a key."""

    def __init__(self, key: bytes, *, secure: bool) -> None:
        self._key, self._pieces = key, 0
        words = np.frombuffer(key[:16], dtype="<u8").astype(np.uint64)
        self._philox = None if secure else np.random.Philox(key=words)

    def words(self, count: int) -> np.ndarray:
        """Return the next words of 64 bits; shape (count,) uint64."""
        if self._philox is not None:
            return np.asarray(self._philox.random_raw(count), dtype="<u8")
        self._pieces += 1
        piece = hashlib.shake_256(derive_key(self._key, self._pieces))
        return np.frombuffer(piece.digest(8 * count), dtype="<u8")
