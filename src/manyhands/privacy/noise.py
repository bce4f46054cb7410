"""Rounded normal noise: whole numbers round(Y) with Y ~ N(0, t²)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np

from manyhands.privacy.keys import derive_key

Source = Callable[[int], bytes]


class RoundedNormals:
    """Rounded normal numbers, different for each worker.

    By default they are Philox's normal numbers with 53 binary digits: the key is secret, but the
    generator is not cryptographic. With `secure` they come from `draw_exactly`.

    Args:
        key: Secret, and of this worker alone; None with `secure`.
        secure: Draw every bit from the operating system.
    """

    def __init__(self, key: bytes | None, *, secure: bool) -> None:
        self.generator = None
        if not secure:
            assert key is not None
            words = np.frombuffer(derive_key(key, "noise")[:16], dtype="<u8").astype(np.uint64)
            self.generator = np.random.Generator(np.random.Philox(key=words))

    def draw(self, count: int, deviation: float) -> np.ndarray:
        """Return `count` of them, of that deviation before rounding; (count,) whole float64."""
        if self.generator is None:
            return draw_exactly(count, deviation)
        normal = self.generator.standard_normal(count)
        normal *= deviation
        return np.rint(normal, out=normal)


# The half-normal density e^(−y²/2), y in [0, 16), below steps of ¼: their heights are whole numbers
# W_j ≥ S e^(−(j/4)²/2) that sum to 2¹⁶, so that 16 bits choose a step exactly.
_CELLS, _WIDTH, _PLACE_BITS, _TEST_BITS = 64, 4, 47, 32
_EXTRA = 24  # bytes more for each number whose first bits leave it open
_DOUBT = 2.0**-30  # of acceptance: a thousand times what float64 gets wrong
_DIGITS = Context(prec=100)
_BLOCK = 1 << 13  # attempts at once: their arrays stay in the cache


def _heights(scale: int) -> list[int]:
    """Return W_j for S = `scale`; the factor is more than float64 can err."""
    edges = (math.exp(-((j / _WIDTH) ** 2) / 2) for j in range(1, _CELLS))
    return [scale, *(math.ceil(scale * edge * (1 + 1e-12)) for edge in edges)]


SCALE = max(s for s in range(11_000, 12_000) if sum(_heights(s)) <= 1 << 16)
HEIGHTS = _heights(SCALE)
HEIGHTS[-1] += (1 << 16) - sum(HEIGHTS)  # higher is allowed: it is only refused more often
_CELL = np.repeat(np.arange(_CELLS, dtype=np.uint8), HEIGHTS)  # by 16 bits
_CHANCE = SCALE / np.array(HEIGHTS, dtype=np.float64)


def draw_exactly(count: int, deviation: float, source: Source = os.urandom) -> np.ndarray:
    """Return round(Y), Y ~ N(0, deviation²), `count` times; (count,) whole float64.

    Rejection (von Neumann 1951): take step j with probability W_j / 2¹⁶, y uniform in it, and keep
    y with probability S e^(−y²/2) / W_j ≤ 1. What is kept has a density of S e^(−y²/2) / 2¹⁶ up to
    a constant: half of a normal number, to which a coin gives its sign. Then y·t is rounded.

    Of y 47 bits are drawn, of the test's uniform number 32. Where a decision (keep, round) could
    depend on further bits, or on errors of float64, 192 further bits of both and 100 digits decide
    (`settle`). So the total variation distance from ideal noise is, for deviations up to 2⁴⁰, at
    most P(|N| ≥ 16) + 2⁻¹⁹⁰ < 2⁻¹⁸⁰ for each number: 2⁻¹²⁰ for 2⁶⁰ of them.
    """
    out, filled = np.empty(count), 0
    while filled < count:
        attempts = min(_BLOCK, (count - filled) * 9 // 8 + 16)
        some = _attempt(attempts, deviation, source)[: count - filled]
        out[filled : filled + len(some)] = some
        filled += len(some)
    return out


def _attempt(count: int, deviation: float, source: Source) -> np.ndarray:
    """Return what is kept of so many attempts; whole float64."""
    raw = source(12 * count)
    words = np.frombuffer(raw, dtype="<u8", count=count)
    tests = np.frombuffer(raw, dtype="<u4", offset=8 * count)
    heads = words >> np.uint64(48)
    places = words & np.uint64((1 << _PLACE_BITS) - 1)
    y = places * 2.0**-_PLACE_BITS  # exact, and so is y: 6 + 47 binary digits
    cells = _CELL[heads]
    y += cells
    y *= 1 / _WIDTH
    chance = np.exp(y * y * -0.5)
    chance *= _CHANCE[cells]
    chance -= tests * 2.0**-_TEST_BITS
    y *= deviation
    values = np.rint(y)
    y -= values
    # y·t has an error of up to 16t·2⁻⁵² by rounding, and t·2⁻⁴⁹ by bits that are still to come.
    open_ = np.abs(chance) < _DOUBT
    open_ |= np.abs(y) > 0.5 - (2.0**-20 + deviation * 2.0**-_PLACE_BITS)
    kept = chance > 0
    for i in np.flatnonzero(open_):
        whole = settle(int(heads[i]), int(places[i]), int(tests[i]), deviation, source)
        kept[i], values[i] = whole is not None, whole or 0
    negative = (words >> np.uint64(_PLACE_BITS)) & np.uint64(1)
    values *= 1.0 - 2.0 * negative
    found: np.ndarray = values[kept]
    return found


def settle(head: int, place: int, test: int, deviation: float, source: Source) -> int | None:
    """Return round(y·t) of one attempt, or None if it is refused, with further bits.

    Args:
        head: 16 bits that choose the step.
        place: The first 47 bits of y's place in it.
        test: The first 32 bits of the uniform number of the test.
        deviation: t.
        source: Where further bits come from.
    """
    shift = 8 * _EXTRA
    more = int.from_bytes(source(_EXTRA), "little"), int.from_bytes(source(_EXTRA), "little")
    cell = int(_CELL[head])
    y = Fraction((place << shift) + more[0], 1 << (_PLACE_BITS + shift)) + cell
    y /= _WIDTH
    uniform = Fraction((test << shift) + more[1], 1 << (_TEST_BITS + shift))
    half = _DIGITS.divide(Decimal((y * y).numerator), Decimal(2 * (y * y).denominator))
    below = Fraction(SCALE, HEIGHTS[cell]) * Fraction(_DIGITS.exp(-half))
    return math.floor(Fraction(deviation) * y + Fraction(1, 2)) if uniform < below else None
