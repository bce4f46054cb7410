"""The f-DP audit of one run: against exact laws, and it can fire at an error of 1e-4."""

import math

import numpy as np
import pytest
from scipy import stats

from manyhands.errors import ConfigError
from manyhands.experiments.audit.canary_attack import gaussian_inverse
from manyhands.privacy.one_run_audit import inverse_of_curve, is_refuted, largest_refuted, p_value


def pure(epsilon):
    """Return F⁻¹ of a mechanism that is (ε, 0) private."""
    return inverse_of_curve(np.array([epsilon]), np.array([0.0]))


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("m", [20, 200])
def test_it_never_falls_below_the_law_of_randomised_response(epsilon, m):
    """Randomised response is (ε, 0) private, and v of m guesses are right as by a binomial law."""
    binomial = stats.binom(m, 1 / (1 + math.exp(-epsilon)))
    for v in range(m // 2, m + 1, max(1, m // 10)):
        assert p_value(m, v, pure(epsilon)) >= binomial.sf(v - 1) * (1 - 1e-6)


def test_all_right_is_as_unlikely_as_randomised_response_has_it():
    """With v = m the recursion has one step to lose in: it is within a factor of 100 of exact."""
    exact = stats.binom(100, 1 / (1 + math.exp(-1.0))).pmf(100)
    assert exact <= p_value(100, 100, pure(1.0)) <= 100 * exact


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_a_gaussian_mechanism_is_rejected_no_more_often_than_it_may_be(mu):
    """Of canaries seen with a shift of μ, v right guesses are binomial: P[p ≤ α] ≤ α, exactly."""
    m, inverse = 200, gaussian_inverse(mu)
    right = stats.binom(m, stats.norm.cdf(mu / 2))
    for alpha in (0.05, 1e-4):
        fires = [v for v in range(m // 2, m + 1) if is_refuted(m, v, inverse, alpha)]
        assert fires or alpha < 0.05
        assert right.sf(min(fires, default=m + 1) - 1) <= alpha


def test_it_finds_a_quarter_of_the_truth():
    m, mu = 1000, 1.0
    right = round(m * stats.norm.cdf(mu / 2))
    found = largest_refuted(lambda mu: is_refuted(m, right, gaussian_inverse(mu), 0.05), 20.0)
    assert 0.25 * mu < found < mu


def test_it_fires_at_the_audits_own_error_when_every_guess_is_right():
    epsilons = np.geomspace(0.01, 80, 100)
    mu = 0.7191  # ε = 3 at δ = 1e-5
    normal = stats.norm.cdf
    deltas = normal(-epsilons / mu + mu / 2) - np.exp(epsilons) * normal(-epsilons / mu - mu / 2)
    inverse = inverse_of_curve(epsilons, np.maximum(deltas, 0))
    assert p_value(1000, 1000, inverse) < 1e-4
    assert not is_refuted(1000, 600, inverse, 0.05)


def test_a_curve_and_its_inverse_agree():
    epsilons = np.linspace(0, 30, 3000)
    normal, mu = stats.norm, 1.3
    deltas = normal.cdf(-epsilons / mu + mu / 2) - np.exp(
        epsilons + normal.logcdf(-epsilons / mu - mu / 2)
    )
    inverse, exact = inverse_of_curve(epsilons, deltas), gaussian_inverse(mu)
    for y in (1e-3, 0.1, 0.5, 0.9, 0.999):
        assert inverse(y) == pytest.approx(float(normal.cdf(normal.ppf(y) - mu)), rel=1e-3)
        assert exact(y) == pytest.approx(float(normal.cdf(normal.ppf(y) - mu)), rel=2e-2)


def test_a_refutation_is_a_p_value_of_at_most_alpha():
    for v in (80, 85, 90):
        p = p_value(100, v, pure(1.0))
        assert is_refuted(100, v, pure(1.0), p * 1.01)
        assert not is_refuted(100, v, pure(1.0), p * 0.99)


def test_more_right_guesses_than_canaries_are_refused():
    with pytest.raises(ConfigError, match="m, v are 5, 6"):
        p_value(5, 6, pure(1.0))
