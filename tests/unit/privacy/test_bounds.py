"""Bounds of the audit: the published formulas to the digits of their tables, and their limits."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.errors import ConfigError
from manyhands.privacy.bounds import gaussian_epsilon, gaussian_estimate, one_run_bound


@pytest.mark.parametrize(
    ("counts", "pure", "approximate"),
    [
        ((1000, 100, 100), 3.4930, 3.4654),
        ((1000, 100, 95), 2.1724, 2.1652),
        ((1000, 1000, 600), 0.2975, 0.2972),
        ((100, 100, 75), 0.7022, 0.7019),
    ],
)
def test_the_table_of_one_run(
    counts: tuple[int, int, int], pure: float, approximate: float
) -> None:
    assert round(one_run_bound(*counts, delta=0), 4) == pure
    assert round(one_run_bound(*counts, delta=1e-5), 4) == approximate


def test_the_gaussian_example() -> None:
    found = gaussian_estimate((50, 1000), (200, 1000), delta=1e-5)
    assert round(found.false_positives, 5) == 0.06539
    assert round(found.false_negatives, 5) == 0.22616
    assert round(found.mu, 4) == 2.2626
    assert round(found.epsilon, 3) == 11.650
    assert round(found.unconditional, 4) == 2.4710


def test_epsilon_3_is_a_shift_of_0_7191() -> None:
    assert gaussian_epsilon(0.7191, 1e-5) == pytest.approx(3, abs=2e-4)


def test_one_run_sees_less_than_the_truth_of_a_gaussian_shift() -> None:
    """A shift of one standard deviation between in and out, and 10,000 canaries."""
    m, r, drawn = 10_000, 2_000, random.Random(1)
    inside = [drawn.random() < 0.5 for _ in range(m)]
    scores = [drawn.gauss(1.0 if i else 0.0, 1.0) for i in inside]
    order = sorted(range(m), key=scores.__getitem__)
    right = sum(not inside[i] for i in order[: r // 2]) + sum(inside[i] for i in order[-r // 2 :])
    truth = gaussian_epsilon(1.0, 1e-5)
    assert truth == pytest.approx(4.38, abs=0.01)
    assert 1.0 < one_run_bound(m, r, right, 1e-5) < truth / 2


@settings(max_examples=40, deadline=None)
@given(data=st.data(), m=st.integers(1, 300))
def test_more_right_guesses_never_prove_less(data: st.DataObject, m: int) -> None:
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(1, r))
    bound = one_run_bound(m, r, v, 1e-5)
    assert one_run_bound(m, r, v - 1, 1e-5) <= bound <= one_run_bound(m, r, v, 0)
    assert one_run_bound(m, r, v, 1e-5, alpha=1e-4) <= bound


def test_guessing_proves_nothing() -> None:
    assert one_run_bound(1000, 1000, 500, 1e-5) == 0
    assert one_run_bound(1000, 0, 0, 1e-5) == 0
    found = gaussian_estimate((500, 1000), (500, 1000), 1e-5)
    assert found.mu == found.epsilon == found.unconditional == 0


def test_a_delta_beyond_doubt_proves_nothing() -> None:
    assert one_run_bound(10, 10, 10, 0.5) == 0


def test_perfect_guesses_prove_what_their_number_allows() -> None:
    bound = one_run_bound(50, 50, 50, 0)
    assert math.exp(bound) / (1 + math.exp(bound)) == pytest.approx(0.05 ** (1 / 50))


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 ≤ v ≤ r ≤ m"):
        one_run_bound(10, 5, 6, 1e-5)
    with pytest.raises(ConfigError, match="3 errors of 2 trials"):
        gaussian_estimate((3, 2), (0, 1), 1e-5)
