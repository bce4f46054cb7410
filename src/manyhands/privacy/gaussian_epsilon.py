"""The ε of a Gaussian mechanism at a δ, from the shift between its two outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from manyhands.errors import ConfigError
from manyhands.privacy.privacy_loss import INSTALL

_LARGEST = 60.0  # e^60 : 1 leaves nothing to tell apart in double precision
_CLOSE = 1e-10


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the ε of a shift by μ: δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)."""
    if mu <= 0:
        return 0.0
    normal = load_stats().norm

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


def load_stats() -> Any:
    """Return `scipy.stats`, or say what to install."""
    try:
        from scipy import stats
    except ImportError:
        raise ConfigError(
            f"bounds on privacy need the package scipy; install it with {INSTALL}"
        ) from None
    return stats
