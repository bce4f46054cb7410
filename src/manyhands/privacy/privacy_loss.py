"""The privacy loss of one private step: dp-accounting's distribution, found for all points at once.

A person has k records (usually one), each in the step's sample with probability q, independently.
Their gradients move the sum by up to jC with probability Bin(k, q)(j): a mixture of Gaussians with
the chances p_j, which for k = 1 is the Poisson-sampled Gaussian. The loss has one value at each
point of the message, and the library needs the point for each value of a grid. It searches them one
by one, in Python; here all are found together: for k = 1 in closed form, for others by Newton's
method. What is rounded up, and how, is the library's (Doroshenko et al., arXiv 2207.04380).

Guarantees: as the library's own, to nine digits, and rounded up as it is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from manyhands.errors import ConfigError

INSTALL = "pip install '.[private]' in the checkout"
MISSING = f"accounting for privacy needs the package dp-accounting; install it with {INSTALL}"
_NEWTON = 200  # steps at the most; a dozen are usual


def step_loss(rate: float, sigma: float, grid: float, records: int = 1) -> Any:
    """Return the privacy loss distribution of one step, rounded up to multiples of `grid`.

    It is that of blanking the k records in their places (or, which costs the same, of adding or
    removing them).

    Raises:
        ConfigError: Without dp-accounting.
    """
    try:
        from dp_accounting.pld import pld_pmf
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
        from dp_accounting.pld.privacy_loss_mechanism import (
            AdjacencyType,
            MixtureGaussianPrivacyLoss,
        )
    except ImportError:
        raise ConfigError(MISSING) from None

    class Mixture(MixtureGaussianPrivacyLoss):  # type: ignore[misc]
        """The library's, with a quicker inverse."""

        _max_sens: float

        def privacy_loss_tail(self, *given: Any, **named: Any) -> Any:
            widest = self._max_sens
            if rate == 1:  # a quantile is its own lower bound then, and rounding may take it out
                self._max_sens = widest * (1 + 1e-9)
            try:
                return super().privacy_loss_tail(*given, **named)
            finally:
                self._max_sens = widest

        def inverse_privacy_losses(self, losses: Any, precision: float = 1e-6) -> Any:
            shift = np.asarray(self.sensitivities, np.float64)
            height = np.log(self.sampling_probs) - shift**2 / (2 * sigma**2)
            adds = self.adjacency_type == AdjacencyType.ADD
            u = _invert(height, shift, -np.asarray(losses) if adds else np.asarray(losses))
            return u * sigma**2 if adds else -u * sigma**2

    chances = [
        math.comb(records, j) * rate**j * (1 - rate) ** (records - j) for j in range(records + 1)
    ]
    both = []
    for adjacency in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        mixture = Mixture(sigma, range(records + 1), chances, adjacency_type=adjacency)
        bounds = mixture.connect_dots_bounds()
        low, high = (
            math.floor(bounds.epsilon_lower / grid),
            math.ceil(bounds.epsilon_upper / grid),
        )
        deltas = mixture.get_delta_for_epsilon(np.arange(low, high + 1) * grid)
        both.append(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas))
    return PrivacyLossDistribution(*both)


def _invert(height: np.ndarray, shift: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return u with log Σ_j exp(height_j + shift_j u) = value, for each value; shift_0 may be 0.

    The function is convex and increasing, and from above, where one term alone has the value,
    Newton's method comes down to the root without ever passing it. Two terms, of which one does not
    move, need no search.
    """
    moves = shift > 0
    u = np.min((values[:, None] - height[moves]) / shift[moves], axis=1)
    if len(shift) == 2 and not moves[0]:
        return np.asarray(u + np.log1p(-np.exp(height[0] - values)) / shift[1])
    for _ in range(_NEWTON):
        terms = height + shift * u[:, None]
        top = terms.max(axis=1)
        weights = np.exp(terms - top[:, None])
        total = weights.sum(axis=1)
        slope = (weights * shift).sum(axis=1) / total
        change = (top + np.log(total) - values) / slope
        u = u - change
        if np.all(np.abs(change) < 1e-10 * (1 + np.abs(u))):
            break
    return np.asarray(u)
