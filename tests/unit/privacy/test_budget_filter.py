"""What all runs on a data set may cost: the rule for runs that were chosen by results of others."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

from manyhands.privacy import accountant
from manyhands.privacy.accountant import Event
from manyhands.privacy.budget_filter import choose_orders, spent

DELTA = 1e-5


def gaussian(sigma: float) -> Event:
    """A release of the whole sum: its privacy loss is normal, and known exactly."""
    return Event(1, 1.0, sigma)


def cost(events: list[Event], epsilon: float = 2.0) -> float:
    return spent(events, DELTA, "adaptive", choose_orders(epsilon, DELTA))


def test_it_is_the_formula_of_its_proof() -> None:
    sigmas = (3.0, 5.0, 8.0)
    orders = choose_orders(2.0, DELTA)
    by_hand = [
        sum(a / (2 * s * s) for s in sigmas)
        + math.log((a - 1) / a)
        + (math.log(len(orders) / DELTA) - math.log(a)) / (a - 1)
        for a in orders
    ]
    assert cost([gaussian(s) for s in sigmas]) == pytest.approx(min(by_hand), rel=1e-12)


def test_planned_runs_compose_as_those_of_a_sweep() -> None:
    events = [Event(100, 0.05, 1.5), Event(200, 0.02, 1.1)]
    assert spent(events, DELTA, "fixed", ()) == accountant.compose(events, DELTA)


@pytest.mark.parametrize("rule", ["adaptive", "fixed"])
def test_nothing_costs_nothing_and_no_noise_everything(rule) -> None:
    orders = choose_orders(2.0, DELTA)
    assert spent([], DELTA, rule, orders) == 0
    assert spent([Event(0, 0.1, 1.0), Event(5, 0.0, 1.0)], DELTA, rule, orders) == 0
    assert math.isinf(spent([Event(1, 0.5, 0.0)], DELTA, rule, orders))


@pytest.mark.parametrize("events", [
    [Event(4687, 512 / 60_000, 1.069)], [Event(1000, 0.01, 2.0)] * 7, [Event(30, 1.0, 20.0)],
])  # fmt: skip
def test_it_is_above_the_tight_cost_and_not_far(events) -> None:
    tight = accountant.compose(events, DELTA)
    assert tight < cost(events, tight) < 1.25 * tight


def profile(epsilon: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """δ(ε) of a Gaussian release of μ = 1/σ, for any real ε (Balle & Wang, arXiv 1805.06530)."""
    none = np.maximum(0.0, -np.expm1(epsilon))
    safe = np.where(mu > 0, mu, 1.0)
    found = norm.cdf(safe / 2 - epsilon / safe) - np.exp(epsilon) * norm.cdf(
        -safe / 2 - epsilon / safe
    )
    return np.where(mu > 0, found, none)


@pytest.mark.parametrize(("first", "unlucky"), list(product([2.5, 4.0, 8.0], [True, False])))
def test_an_analyst_who_plans_by_results_stays_within_the_budget(first, unlucky) -> None:
    """The attack: look at the first result, then spend all that the filter leaves, or nothing.

    With x ~ N(1, σ²) against N(0, σ²) its loss is L(x) = (2x − 1)/2σ², and the whole has
    δ(ε) = E_x δ_second(x)(ε − L(x)), which is integrated here without Rényi costs.
    """
    epsilon = 2.0
    assert cost([gaussian(first)]) <= epsilon
    low, high = 0.1, 1e4
    for _ in range(60):  # the least noise that the filter still allows
        middle = math.sqrt(low * high)
        allowed = cost([gaussian(first), gaussian(middle)]) <= epsilon
        low, high = (low, middle) if allowed else (middle, high)
    x = np.linspace(1 - 12 * first, 1 + 12 * first, 200_001)
    weight = norm.pdf(x, 1, first) * (x[1] - x[0])
    loss = (2 * x - 1) / (2 * first**2)
    for threshold in np.quantile(loss, [0.3, 0.5, 0.6]):
        goes_on = (loss > threshold) if unlucky else (loss < threshold)
        mu = np.where(goes_on, 1 / high, 0.0)
        delta = float((weight * profile(epsilon - loss, mu)).sum())
        assert 0 < delta <= DELTA
