"""The accountant: pinned values, its inverse, composition; two methods check each other."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import manyhands as mh
from manyhands.errors import ConfigError
from manyhands.privacy.accountant import (
    Event,
    compose,
    curve,
    epsilon,
    noise_multiplier,
    renyi,
    write_bound,
)
from manyhands.privacy.gaussian_epsilon import gaussian_epsilon

DELTA = 1e-5
TANH = Event(40 * 60_000 // 512, 512 / 60_000, 1.23)  # Tramèr and Boneh's recipe, Poisson batches


@given(bound=st.floats(0, 1e12), places=st.integers(1, 6), significant=st.booleans())
def test_what_is_printed_is_never_on_the_wrong_side(
    bound: float, places: int, significant: bool
) -> None:
    above = Decimal(write_bound(bound, places, significant=significant))
    below = Decimal(write_bound(bound, places, up=False, significant=significant))
    assert below <= Decimal(bound) <= above
    digits = places - 1 - Decimal(bound).adjusted() if significant else places
    assert above - below <= Decimal(1).scaleb(-max(0, digits))


def test_a_bound_is_printed_with_the_digits_that_a_reader_expects() -> None:
    assert [write_bound(each) for each in (3.0, 2.99543, math.inf)] == ["3.0000", "2.9955", "inf"]
    assert write_bound(0.33339, up=False) == "0.3333"
    several = [write_bound(each, significant=True) for each in (53.9512, 10.0, 123_456.7)]
    assert several == ["53.96", "10", "123457"]


def test_pinned_values() -> None:
    event = Event(2250, 0.04, 1.5)
    assert round(epsilon(event, DELTA, "rdp"), 4) == 7.3291
    assert round(epsilon(event, DELTA, "pld"), 4) == 6.7688
    assert round(epsilon(TANH, DELTA, "rdp"), 3) == 2.581
    assert round(epsilon(TANH, DELTA, "pld"), 3) == 2.363


def test_the_noise_for_epsilon_3() -> None:
    assert noise_multiplier(3, DELTA, TANH.rate, TANH.steps) == 1.069


@pytest.mark.parametrize(
    ("wanted", "rate", "steps"),
    [(0.1, 512 / 60_000, 1000), (1.0, 0.25, 40)],
)
def test_solved_noise_keeps_to_the_budget_and_less_would_not(
    wanted: float, rate: float, steps: int
) -> None:
    sigma = noise_multiplier(wanted, DELTA, rate, steps)
    assert sigma == float(f"{sigma:.4g}")
    assert epsilon(Event(steps, rate, sigma), DELTA) <= wanted
    assert epsilon(Event(steps, rate, sigma * 0.998), DELTA) > wanted


@pytest.mark.parametrize("wanted", [1e-3, 0.05, 30.0])
@pytest.mark.parametrize(("rate", "steps"), [(0.001, 3), (0.5, 30)])
def test_the_least_noise_is_found_far_from_the_usual(
    wanted: float, rate: float, steps: int
) -> None:
    sigma = noise_multiplier(wanted, 1e-4, rate, steps)
    assert epsilon(Event(steps, rate, sigma), 1e-4) <= wanted
    assert epsilon(Event(steps, rate, sigma * 0.998), 1e-4) > wanted


def test_a_run_does_not_wait_for_the_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: few distributions are made, and none point by point in Python."""
    from dp_accounting.pld.privacy_loss_mechanism import AdditiveNoisePrivacyLoss

    from manyhands.privacy import accountant

    made, whole = [], accountant._loss

    def count(rate: float, sigma: float, grid: float) -> Any:
        made.append(grid)
        return whole(rate, sigma, grid)

    def search(*args: Any) -> float:
        raise AssertionError("the library searches each point")

    monkeypatch.setattr(accountant, "_loss", count)
    monkeypatch.setattr(AdditiveNoisePrivacyLoss, "inverse_privacy_loss", search)
    assert noise_multiplier(3.0, DELTA, 128 / 60_000, 1405) == 0.5784
    fine = [grid for grid in made if grid < 5e-4]
    assert len(fine) <= 3
    assert len(made) <= 8


def test_it_agrees_with_the_librarys_own_accountants() -> None:
    import dp_accounting
    from dp_accounting import pld, rdp

    gaussian = dp_accounting.GaussianDpEvent(TANH.noise_multiplier)
    steps = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(TANH.rate, gaussian), TANH.steps
    )
    theirs = pld.PLDAccountant().compose(steps).get_epsilon(DELTA)
    assert epsilon(TANH, DELTA) == pytest.approx(theirs, rel=1e-6)
    # The library bounds fractional orders from above; ours are exact.
    looser = rdp.RdpAccountant().compose(steps).get_epsilon(DELTA)
    assert looser * 0.999 < epsilon(TANH, DELTA, "rdp") <= looser + 1e-9


@pytest.mark.parametrize("sigma", [0.3265, 0.8276, 3.202, 121.5])
def test_a_step_of_all_records_is_bounded_where_rounding_is_unlucky(sigma: float) -> None:
    exact = gaussian_epsilon(1 / sigma, DELTA)
    assert exact <= epsilon(Event(1, 1.0, sigma), DELTA) <= exact * 1.001


def test_one_unsampled_step_is_the_gaussian_mechanism() -> None:
    exact, four = gaussian_epsilon(1 / 4, DELTA), gaussian_epsilon(2 / 4, DELTA)
    assert exact <= epsilon(Event(1, 1.0, 4.0), DELTA) <= exact * 1.0005
    assert epsilon(Event(4, 1.0, 4.0), DELTA) == pytest.approx(four, rel=5e-4)


@pytest.mark.parametrize(
    "event", [Event(40, 0.05, 1.0), Event(100, 0.01, 0.7), Event(30, 0.3, 2.0)]
)
def test_simulated_losses_fail_as_often_as_delta_says(event: Event) -> None:
    """Independent of both accountants, and it sees an ε that is too small: δ by its definition.

    With the record present a step's sum is N(1, σ²) with probability q, else N(0, σ²).
    """
    delta, runs, variance = 0.01, 100_000, event.noise_multiplier**2
    claimed = math.exp(epsilon(event, delta))
    rng = np.random.default_rng(0)
    present, absent = np.zeros(runs), np.zeros(runs)
    for _ in range(event.steps):
        drawn = rng.random(runs) < event.rate
        noise = rng.normal(scale=event.noise_multiplier, size=runs)
        for losses, sums in ((present, drawn + noise), (absent, noise)):
            odds = np.exp((sums - 0.5) / variance)
            losses += np.log1p(event.rate * (odds - 1))
    failures = [np.maximum(0, 1 - claimed * np.exp(-losses)) for losses in (present, -absent)]
    error = max(f.std() for f in failures) / math.sqrt(runs)
    assert max(f.mean() for f in failures) == pytest.approx(delta, abs=4 * error)
    assert error < delta / 20


@pytest.mark.parametrize("order", [2, 3, 8])
def test_whole_orders_follow_the_binomial_sum(order: int) -> None:
    q, sigma = 0.03, 0.9
    terms = (
        math.comb(order, k) * (1 - q) ** (order - k) * q**k * math.exp((k * k - k) / (2 * sigma**2))
        for k in range(order + 1)
    )
    assert renyi(order, q, sigma) == pytest.approx(math.log(sum(terms)) / (order - 1), rel=1e-12)


rates = st.floats(0.001, 1.0)
noises = st.floats(1.0, 20.0)


@settings(max_examples=3, deadline=None)
@given(rate=rates, sigma=noises, steps=st.integers(1, 200))
def test_rdp_is_never_below_pld_and_both_rise_with_the_steps(
    rate: float, sigma: float, steps: int
) -> None:
    now, later = Event(steps, rate, sigma), Event(2 * steps, rate, sigma)
    assert epsilon(now, DELTA) <= epsilon(now, DELTA, "rdp") * (1 + 1e-3) + 1e-3
    for method in ("pld", "rdp"):
        assert epsilon(now, DELTA, method) <= epsilon(later, DELTA, method) + 1e-9  # type: ignore[arg-type]


def test_composition_of_like_events_adds_their_steps() -> None:
    half = Event(1000, 0.01, 1.1)
    for method in ("pld", "rdp"):
        both = compose([half, half], DELTA, method)  # type: ignore[arg-type]
        assert both == epsilon(Event(2000, 0.01, 1.1), DELTA, method)  # type: ignore[arg-type]


def test_composition_costs_more_than_each_and_less_than_the_sum() -> None:
    events = [Event(1000, 0.01, 1.1), Event(500, 0.02, 1.3)]
    alone = [epsilon(e, DELTA) for e in events]
    assert max(alone) < compose(events, DELTA) < sum(alone)


def test_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    assert compose([], DELTA) == 0
    assert epsilon(Event(0, 0.1, 1.0), DELTA) == 0
    assert epsilon(Event(10, 0.0, 1.0), DELTA) == 0
    assert epsilon(Event(1, 0.1, 0.0), DELTA) == math.inf
    assert epsilon(Event(0, 0.1, 0.0), DELTA) == 0


def test_the_curve_rises_to_the_stated_epsilon() -> None:
    points = curve(TANH, DELTA)
    steps, costs = zip(*points, strict=True)
    assert list(costs) == sorted(costs)
    assert list(steps) == sorted(set(steps))
    assert points[-1][0] == TANH.steps
    assert points[-1][1] == pytest.approx(epsilon(TANH, DELTA), rel=5e-3)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_that_means_nothing_is_refused(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta is"):
        epsilon(TANH, delta)


def test_events_and_budgets_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"rate is 1\.5"):
        Event(1, 1.5, 1.0)
    with pytest.raises(ConfigError, match="noise_multiplier is -1"):
        Event(1, 0.5, -1)
    with pytest.raises(ConfigError, match="epsilon is 0"):
        noise_multiplier(0, DELTA, 0.1, 10)
    with pytest.raises(ConfigError, match="steps is 0"):
        noise_multiplier(1, DELTA, 0.1, 0)


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[private\]'"):
        epsilon(Event(7, 0.123, 1.7), DELTA)
    assert epsilon(Event(7, 0.123, 1.7), DELTA, "rdp") > 0  # this method is our own


def test_a_missing_package_is_refused_before_anything_is_started(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    given = {"private": True, "epsilon": 3.0, "output": str(tmp_path / "run")}
    with pytest.raises(ConfigError, match=r"dp-accounting; install it with pip install"):
        mh.fit("logistic", "blobs", workers=1, **given)
    assert not (tmp_path / "run").exists()
