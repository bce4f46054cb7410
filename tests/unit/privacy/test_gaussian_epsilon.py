"""The ε of a Gaussian shift, against published figures and its own definition."""

import math

import pytest
from scipy.stats import norm

from manyhands.privacy.gaussian_epsilon import gaussian_epsilon


@pytest.mark.parametrize(("mu", "epsilon"), [(0.7191, 3.0), (1.0, 4.3772), (2.2626, 11.650)])
def test_published_figures(mu: float, epsilon: float) -> None:
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(epsilon, abs=1e-3)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_it_solves_the_equation(mu: float) -> None:
    epsilon = gaussian_epsilon(mu, 1e-5)
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-4)


def test_no_shift_is_private_and_any_shift_is_not_without_a_delta() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert gaussian_epsilon(1.0, 0.0) == math.inf
