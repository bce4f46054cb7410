"""The simulated parameter server, where it can be worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from manyhands.experiments.forecast.simulation import Setting, quantile, simulate

ONE = Setting(workers=1, compute=0.010, busy=(0.002,), trip=0.001, pushes=1000)


def test_one_worker_takes_its_turn_and_is_never_stale():
    found = simulate(ONE)
    assert found.rate == pytest.approx(1 / 0.013)
    assert set(found.staleness) == {0}
    assert found.idle == pytest.approx(1 - 2 / 13, abs=0.01)


def test_few_workers_do_not_wait_for_an_idle_master():
    found = simulate(dataclasses.replace(ONE, workers=4, pushes=4000))
    assert found.rate == pytest.approx(4 / 0.013, rel=0.02)


def test_a_master_that_is_always_busy_is_the_limit():
    found = simulate(dataclasses.replace(ONE, workers=50, pushes=5000))
    assert found.rate == pytest.approx(1 / 0.002, rel=0.01)
    assert found.idle == pytest.approx(0, abs=0.02)
    assert found.mean_staleness == pytest.approx(49, abs=1)


def test_a_second_master_halves_what_each_does():
    two = simulate(dataclasses.replace(ONE, workers=50, busy=(0.001, 0.001), pushes=5000))
    assert two.rate == pytest.approx(1 / 0.001, rel=0.02)


def test_without_a_bound_staleness_is_about_the_others():
    found = simulate(dataclasses.replace(ONE, workers=8, busy=(1e-5,), spread=(0.5, 1.5)))
    assert found.mean_staleness == pytest.approx(7, rel=0.05)
    assert max(found.staleness) > 7


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_the_waiting_rule_bounds_staleness(bound):
    workers = 6
    wild = dataclasses.replace(ONE, workers=workers, busy=(1e-5,), spread=(0.1, 0.2, 2.7))
    bounded = simulate(dataclasses.replace(wild, bound=bound))
    assert max(bounded.staleness) <= (workers - 1) * (2 * bound + 1)
    assert bounded.rate < simulate(wild).rate


def test_bound_zero_steps_together():
    found = simulate(dataclasses.replace(ONE, workers=4, bound=0, pushes=2000))
    assert set(found.staleness) == {0}
    assert found.rate == pytest.approx(4 / (0.010 + 0.001 + 4 * 0.002), rel=0.02)


def test_the_same_seed_plays_the_same():
    setting = dataclasses.replace(ONE, workers=5, spread=(0.5, 1.0, 1.5), seed=3)
    assert simulate(setting) == simulate(setting)
    assert simulate(setting).rate != simulate(dataclasses.replace(setting, seed=4)).rate


def test_quantiles_are_a_broken_line():
    assert [quantile((1.0, 2.0, 5.0), level) for level in (0, 0.25, 0.5, 0.75, 1)] == [
        1.0, 1.5, 2.0, 3.5, 5.0,
    ]  # fmt: skip
    assert quantile((3.0,), 0.7) == 3.0
