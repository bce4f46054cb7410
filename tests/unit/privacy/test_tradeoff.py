"""The trade-off curve: the exact one where that is known, and no attack beats it."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from manyhands.errors import ConfigError
from manyhands.privacy import accountant
from manyhands.privacy.accountant import Event
from manyhands.privacy.tradeoff import CURVE, misses


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (3.0, 1), (8.0, 25)])
def test_without_sampling_it_is_the_gaussian_s_own_curve(sigma, steps):
    """f(α) = Φ(Φ⁻¹(1 − α) − μ) with μ = √T / σ (Dong, Roth & Su, equation 6)."""
    exact = norm.cdf(norm.ppf(1 - np.array(CURVE)) - math.sqrt(steps) / sigma)
    found = np.array(misses([Event(steps, 1.0, sigma)], CURVE))
    assert np.all(found <= exact + 1e-9)
    assert np.allclose(found, exact, atol=2e-3)


def test_the_best_attack_on_one_sampled_step_does_no_better():
    """The attack: N(0, σ²) against (1 − q) N(0, σ²) + q N(1, σ²) by thresholds on the sum."""
    q, sigma = 0.2, 0.8
    threshold = np.linspace(-4, 6, 2001)
    absent = norm.sf(threshold, 0, sigma)
    present = (1 - q) * absent + q * norm.sf(threshold, 1, sigma)
    # The curve covers both directions: guesses that a record took part, and that it was blanked.
    directions = [(absent, 1 - present), (1 - present, absent)]
    gaps = []
    for alpha, beta in directions:
        inside = (alpha > 1e-4) & (beta > 1e-4)
        bound = np.array(misses([Event(1, q, sigma)], alpha[inside]))
        assert np.all(bound <= beta[inside] + 1e-9)
        gaps.append(float(np.min(beta[inside] - bound)))
    assert max(gaps) < 5e-3  # either direction touches the curve


def test_many_sampled_steps_against_simulated_losses():
    """The optimal test on simulated privacy losses misses no less than the curve says."""
    q, sigma, steps, n = 0.05, 1.2, 60, 40_000
    rng = np.random.default_rng(0)

    def losses(present):
        x = rng.normal(0, sigma, (n, steps)) + present * (rng.random((n, steps)) < q)
        return np.log1p(q * np.expm1((2 * x - 1) / (2 * sigma**2))).sum(axis=1)

    absent, present = losses(False), losses(True)
    for alpha in (0.01, 0.05, 0.2, 0.5):
        beta = float(np.mean(present <= np.quantile(absent, 1 - alpha)))
        (bound,) = misses([Event(steps, q, sigma)], [alpha])
        assert bound <= beta + 4 * math.sqrt(beta * (1 - beta) / n) + 0.01
        assert bound > beta - 0.05


def test_the_ends_of_the_curve():
    nothing = [Event(0, 0.1, 1.0), Event(10, 0.0, 1.0)]
    assert misses(nothing, [0.0, 0.25, 1.0]) == [1.0, 0.75, 0.0]
    assert misses([Event(1, 0.5, 0.0)], [0.1]) == [0.0]
    with pytest.raises(ConfigError, match="false_positives"):
        misses([], [1.5])


def test_without_false_positives_a_large_epsilon_gives_a_number(monkeypatch):
    """e^ε overflows, and 0 · ∞ is no number."""
    monkeypatch.setattr(accountant, "compose", lambda *_: 2000.0)
    monkeypatch.setattr(accountant, "deltas", lambda _, epsilons: np.full(len(epsilons), 0.5))
    found = misses([Event(1, 1.0, 1.0)], [0.0, 0.25])
    assert found == [0.5, 0.25]


def test_several_events_are_one_attack():
    events = [Event(50, 0.05, 1.5), Event(80, 0.02, 1.1)]
    both = np.array(misses(events, CURVE))
    for event in events:
        assert np.all(both <= np.array(misses([event], CURVE)) + 1e-3)
    epsilons = np.array([0.5, 1.5])
    expected = accountant.deltas(events, epsilons)
    for epsilon, delta in zip(epsilons, expected, strict=True):
        assert accountant.compose(events, float(delta)) <= epsilon + 2e-2
