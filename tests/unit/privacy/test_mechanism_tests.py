"""The statistics of the audit: against independent computations, and level under the null."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from manyhands.privacy.mechanism_tests import (
    Finding,
    contribution_norms,
    inclusion,
    inclusion_spread,
    noise_independence,
    noise_repetition,
    noise_shape,
    noise_variance,
    rejected,
    sensitivity,
)


def rounded(random, count, deviation):
    return np.rint(random.standard_normal(count) * deviation)


def finding(p):
    return Finding(test="t", where="", value=0.0, expected="", p=p)


def test_holm_rejects_in_order_until_one_is_kept():
    found = [finding(p) for p in (0.04, 0.001, 0.02, 0.5)]
    assert [f.p for f in rejected(found, 0.05)] == [0.001]  # 0.02 > 0.05 / 3
    assert [f.p for f in rejected(found, 0.07)] == [0.001, 0.02]  # 0.04 > 0.07 / 2
    assert not rejected([], 0.05)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_the_variance_is_judged_as_by_simulation(factor):
    """p is the part of sound samples, times two, that are as far on that side."""
    random = np.random.default_rng(1)
    deviation, n, runs = 8.0, 100, 4000
    seen = rounded(random, n, deviation) * factor
    found = noise_variance(seen, deviation, "")
    sound = np.square(rounded(random, (runs, n), deviation)).sum(1)
    above = float((sound >= np.square(seen).sum()).mean())
    expected = min(1.0, 2 * min(above, 1 - above))
    assert found.p == pytest.approx(expected, abs=6 * math.sqrt(0.25 / runs) + 0.01)


@pytest.mark.parametrize(
    "test",
    [
        lambda r: noise_variance(rounded(r, 400, 8.0), 8.0, ""),
        lambda r: noise_shape(rounded(r, 400, 8.0), 8.0, ""),
        lambda r: noise_independence(rounded(r, (2, 50), 8.0), ["a", "b"]),
        lambda r: inclusion_spread(r.binomial(10, 0.1, 600), 10, 0.1, ""),
        lambda r: inclusion_spread(r.binomial(600, 0.1, 20), 600, 0.1, ""),
    ],
    ids=["variance", "shape", "independence", "spread over records", "spread over steps"],
)
def test_p_values_of_sound_mechanisms_are_uniform(test):
    """Against the exact law: 1,000 sound samples, held against U(0, 1) by Kolmogorov's test."""
    random = np.random.default_rng(0)
    values = [test(random).p for _ in range(1000)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_the_largest_of_many_correlations_is_judged_times_their_number():
    random = np.random.default_rng(0)
    rows = rounded(random, (6, 80), 50.0)
    found = noise_independence(rows, [str(i) for i in range(6)])
    unit = rows / np.linalg.norm(rows, axis=1)[:, None]
    each = [abs(unit[i] @ unit[j]) for i in range(6) for j in range(i)]
    # Student's t of a correlation through the origin, with n − 1 degrees of freedom.
    r = max(each)
    t = r * math.sqrt(79 / (1 - r**2))
    assert abs(found.value) == pytest.approx(r)
    assert found.p == pytest.approx(min(1.0, 15 * 2 * stats.t.sf(t, 79)), rel=1e-9)


def test_rows_that_are_equal_or_opposite_are_found():
    random = np.random.default_rng(0)
    rows = rounded(random, (5, 300), 20.0)
    rows[4] = -rows[1]
    found = noise_independence(rows, list("abcde"))
    assert found.p < 1e-12
    assert found.where == "b and e"
    assert found.value == pytest.approx(-1.0)


def test_repetition_is_the_circular_autocorrelation():
    random = np.random.default_rng(0)
    rows = rounded(random, (12, 128), 20.0)
    rows[:, 32:64] = rows[:, :32]
    found = noise_repetition(rows, "")
    by_hand = [np.mean(rows * np.roll(rows, -shift, axis=1)) for shift in range(1, 64)]
    assert found.value == pytest.approx(max(by_hand, key=abs) / np.square(rows).mean())
    assert found.p < 1e-6
    assert ", 32 parameters apart" in found.where


def test_repetition_is_seldom_seen_in_sound_noise():
    random = np.random.default_rng(0)
    values = [noise_repetition(rounded(random, (20, 500), 20.0), "").p for _ in range(200)]
    assert np.mean(np.array(values) < 0.05) < 0.1


def test_frequency_is_the_binomial_test():
    assert inclusion(130, 1000, 0.1, "").p == stats.binomtest(130, 1000, 0.1).pvalue
    assert inclusion(1000, 1000, 1.0, "").p == 1.0
    assert inclusion(999, 1000, 1.0, "").p == 0.0


@pytest.mark.parametrize("counts", [[60] * 20, [0, 120] * 10])
def test_sizes_that_never_vary_or_vary_too_much_are_found(counts):
    assert inclusion_spread(np.array(counts), 600, 0.1, "").p < 1e-8


def test_a_norm_above_the_clipping_norm_is_certain():
    assert contribution_norms(np.array([0.5, 1.0]), 1.0, "").p == 1.0
    assert contribution_norms(np.array([0.5, 1.01]), 1.0, "").p == 0.0
    assert contribution_norms(np.array([0.5, math.nan]), 1.0, "").p == 0.0


def test_the_sensitivity_needs_the_lattices_part():
    sound = sensitivity(1.01, 1.0, 1e-3, 100)
    assert sound.p == 1.0
    assert sensitivity(1.009, 1.0, 1e-3, 100).p == 0.0
    assert replace(sound, p=0.5).as_dict()["p"] == 0.5
