"""The f-DP audit of one run (Mahloujifar, Melis & Chaudhuri, arXiv 2410.22235).

A claim is more than one (ε, δ): it is a whole curve δ(ε). With m canaries, each in by a fair coin
and each guessed, let p_i be the probability that i guesses are right, R_t = Σ_{i ≥ t} (i/m) p_i and
H_t = Σ_{i ≥ t} ((m − i)/m) p_i. Flipping one coin turns a right guess into a wrong one, and t right
ones into t − 1, so that

    R_t ≤ F(H_{t−1}),   F(x) = sup P[event | in] where P[event | out] = x, and the same exchanged.

`p_value` is the largest P[v or more are right] with which all of these hold. Unlike a bound at one
δ it needs no m·δ below α, so it can fire.

Guarantees: if the mechanism keeps to the curve, p ≤ α has a probability of α at most, whatever the
attack.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from manyhands import value_checks
from manyhands.errors import ConfigError

_BISECTIONS = 40
_LEAST = -60.0  # a smaller logarithm of a p-value is not told from this one

Inverse = Callable[[float], float]


def inverse_of_curve(epsilons: np.ndarray, deltas: np.ndarray) -> Inverse:
    """Return F⁻¹ of a curve: the least P[event | out] where P[event | in] is given.

    Each point says P[in] ≤ δ + e^ε P[out], and 1 − P[out] ≤ δ + e^ε (1 − P[in]).
    """
    growth = np.exp(epsilons)

    def inverse(y: float) -> float:
        first = float(((y - deltas) / growth).max())
        second = float((1 - deltas - (1 - y) * growth).max())
        return max(0.0, first, second)

    return inverse


def p_value(m: int, v: int, inverse: Inverse) -> float:
    """Return how likely v or more of m guesses are right, at the most, under the claim."""
    if not 0 <= v <= m or m == 0:
        raise ConfigError(f"m, v are {m}, {v}; expected 0 ≤ v ≤ m, and a canary at least")
    if v == 0 or _is_possible(m, v, inverse, 1.0):
        return 1.0
    low, high = _LEAST, 0.0  # logarithms: possible, impossible
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _is_possible(m, v, inverse, math.exp(middle)):
            low = middle
        else:
            high = middle
    return math.exp(high)


def is_refuted(m: int, v: int, inverse: Inverse, alpha: float) -> bool:
    """Say whether v right guesses of m refute a claim at an error of `alpha`: p ≤ α, but faster."""
    return v > 0 and not _is_possible(m, v, inverse, alpha)


def _is_possible(m: int, v: int, inverse: Inverse, tau: float) -> bool:
    """Say whether P[v or more right] = τ contradicts no inequality: R_0 + H_0 ≤ 1."""
    right, wrong = tau * v / m, tau * (m - v) / m
    for i in range(v - 1, -1, -1):
        least = max(wrong, inverse(right))
        right += i / (m - i) * (least - wrong)
        wrong = least
        if right + wrong > 1 + 1e-12:
            return False
    return True


def largest_refuted(refuted: Callable[[float], bool], top: float) -> float:
    """Return the largest parameter of a family of claims that is refuted; 0 if none is."""
    value_checks.positive(top=top)
    low, high = 0.0, top
    if refuted(top):
        return top
    for _ in range(_BISECTIONS // 2):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
