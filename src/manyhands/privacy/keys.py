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


class NormalNoise:
    """Standard normal numbers, different for each worker.

    Args:
        key: Secret, and of this worker alone; None with `secure`.
        secure: Draw every number from the operating system's generator, as the sum of four
            Gaussians, so that the gaps of floating-point numbers do not give the sum beneath the
            noise away (Holohan & Braghin 2021, arXiv 2107.10138).
    """

    def __init__(self, key: bytes | None, *, secure: bool) -> None:
        self.generator = None
        if not secure:
            assert key is not None
            words = np.frombuffer(derive_key(key, "noise")[:16], dtype="<u8").astype(np.uint64)
            self.generator = np.random.Generator(np.random.Philox(key=words))

    def draw(self, count: int, dtype: type[np.floating]) -> np.ndarray:
        """Return `count` of them; shape (count,)."""
        if self.generator is not None:
            kind = np.float32 if dtype == np.float32 else np.float64
            return self.generator.standard_normal(count, dtype=kind)
        four = np.sum([_from_system(count) for _ in range(4)], axis=0)
        return np.asarray(four / 2, dtype=dtype)


def _from_system(count: int) -> np.ndarray:
    """Return standard normal numbers by Box and Muller's method; shape (count,) float64."""
    half = (count + 1) // 2
    words = np.frombuffer(os.urandom(16 * half), dtype="<u8").reshape(2, half)
    u, v = ((words >> np.uint64(11)) + 1).astype(np.float64) * 2.0**-53  # in (0, 1]
    radius = np.sqrt(-2 * np.log(u))
    return np.concatenate([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)])[:count]
