"""Lower bounds on epsilon from an attack's guesses about planted examples.

`one_run_bound` assumes nothing but the definition of privacy, and is loose. `gaussian_estimate`
assumes that the mechanism is Gaussian and the trials independent; the canaries of one run are not,
so it is called an estimate.

Guarantees: where the mechanism is (ε, δ) private, `one_run_bound` exceeds ε with probability at
most `alpha`, whatever the attack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manyhands import validate
from manyhands.errors import ConfigError
from manyhands.privacy.accountant import INSTALL

_LARGEST = 60.0  # e^60 : 1 leaves nothing to tell apart in double precision
_CLOSE = 1e-10


def one_run_bound(m: int, r: int, v: int, delta: float, alpha: float = 0.05) -> float:
    """Return the epsilon that one run refutes (Steinke, Nasr, Jagielski, arXiv 2305.08846).

    With W ~ Bin(r, e^ε/(1 + e^ε)), a mechanism that is (ε, δ) private lets v or more of r guesses
    be right with probability at most

        P[W ≥ v] + 2mδ · max over i = 1 … v of P[v > W ≥ v − i] / i .

    Args:
        m: How many canaries there were, each included by a fair coin.
        r: How many of them were guessed; the attack abstains from the others.
        v: How many guesses were right.
        delta: The δ of the claim.
        alpha: The error allowed.

    Returns:
        The largest ε whose probability is at most `alpha`; 0 where there is none.
    """
    if not 0 <= v <= r <= m:
        raise ConfigError(f"m, r, v are {m}, {r}, {v}; expected 0 ≤ v ≤ r ≤ m")
    validate.between(0, 1, delta=delta, alpha=alpha)
    if v == 0:
        return 0.0
    return _largest_true(lambda epsilon: _likelihood(m, r, v, delta, epsilon) <= alpha)


def _likelihood(m: int, r: int, v: int, delta: float, epsilon: float) -> float:
    import numpy as np

    binomial = _stats().binom(r, 1 / (1 + math.exp(-epsilon)))
    beyond = float(binomial.sf(v - 1))
    if delta == 0:
        return beyond
    i = np.arange(1, v + 1)
    below = np.cumsum(binomial.pmf(v - i))  # P[v > W ≥ v − i]
    return beyond + 2 * m * delta * float((below / i).max())


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The epsilon from a membership test's errors; the rates are upper confidence bounds.

    Attributes:
        false_positives: FPR⁺, of examples left out that were taken for members.
        false_negatives: FNR⁺, of members that were taken for left out.
        mu: How far apart, in standard deviations, members and others are at least.
        epsilon: What that distance means if the mechanism is Gaussian.
        unconditional: ln((1 − FNR⁺ − δ)/FPR⁺), without that assumption.
    """

    false_positives: float
    false_negatives: float
    mu: float
    epsilon: float
    unconditional: float


def gaussian_estimate(
    outside: tuple[int, int], inside: tuple[int, int], delta: float, alpha: float = 0.05
) -> Estimate:
    """Return the epsilon of a Gaussian mechanism with so many errors (Nasr et al., 2302.07956).

    Args:
        outside: False positives, and how many examples were left out.
        inside: False negatives, and how many examples were included.
        delta: The δ of the claim.
        alpha: The error allowed, half of it for each rate.
    """
    validate.between(0, 1, delta=delta, alpha=alpha)
    fpr, fnr = _upper(*outside, alpha / 2), _upper(*inside, alpha / 2)
    normal = _stats().norm
    mu = max(0.0, float(normal.ppf(1 - fpr) - normal.ppf(fnr)))
    kept = 1 - fnr - delta
    return Estimate(
        false_positives=fpr,
        false_negatives=fnr,
        mu=mu,
        epsilon=gaussian_epsilon(mu, delta),
        unconditional=max(0.0, math.log(kept / fpr)) if kept > 0 else 0.0,
    )


def _upper(errors: int, trials: int, alpha: float) -> float:
    """Return the Clopper–Pearson upper bound of an error rate."""
    if not 0 <= errors <= trials or trials == 0:
        raise ConfigError(
            f"{errors} errors of {trials} trials; expected 0 ≤ errors ≤ trials, 1 or more"
        )
    if errors == trials:
        return 1.0
    return float(_stats().beta.ppf(1 - alpha, errors + 1, trials - errors))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the ε of a shift by μ: δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)."""
    if mu <= 0:
        return 0.0
    normal = _stats().norm

    def too_low(epsilon: float) -> bool:
        second = epsilon + float(normal.logcdf(-epsilon / mu - mu / 2))
        return float(normal.cdf(-epsilon / mu + mu / 2)) - math.exp(second) > delta

    return _largest_true(too_low, top=mu * (mu / 2 + 40)) if delta > 0 else math.inf


def _largest_true(holds: Callable[[float], bool], top: float = _LARGEST) -> float:
    """Return the largest number up to which a statement holds; 0 if it never does."""
    low, high = 0.0, top
    if not holds(low):
        return 0.0
    while high - low > _CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _stats() -> Any:
    try:
        from scipy import stats
    except ImportError:
        raise ConfigError(
            f"bounds on privacy need the package scipy; install it with {INSTALL}"
        ) from None
    return stats
