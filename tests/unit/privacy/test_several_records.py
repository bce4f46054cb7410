"""The epsilon of a person with several records: by the accountant, never k times the one."""

import math

import pytest

from manyhands.privacy.accountant import Event, compose, epsilon
from manyhands.privacy.several_records import epsilon_for

RECIPE = Event(4687, 512 / 60_000, 1.069)  # ε = 2.995 for one record


@pytest.mark.parametrize(("records", "pinned"), [(1, 2.9954), (2, 6.6806), (3, 10.9025)])
def test_the_recipe(records: int, pinned: float) -> None:
    """By dp-accounting's own mixture of Gaussians, on a grid of 1e-4."""
    found = epsilon_for((RECIPE,), 1e-5, records)
    assert pinned - 1e-4 <= found < 1.001 * pinned
    if records > 1:
        assert found > records * epsilon(RECIPE, 1e-5)  # k·ε would be too little


@pytest.mark.parametrize("event", [Event(31, 0.064, 1.5), Event(7, 0.4, 3.0), Event(5, 1.0, 8.0)])
@pytest.mark.parametrize("records", [2, 5])
def test_it_is_the_library_s_mixture(event: Event, records: int) -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism

    q = event.rate
    chances = [math.comb(records, j) * q**j * (1 - q) ** (records - j) for j in range(records + 1)]
    slow = from_mixture_gaussian_mechanism(
        event.noise_multiplier, range(records + 1), chances, value_discretization_interval=1e-2
    ).self_compose(event.steps)
    fine = epsilon_for((event,), 1e-4, records)
    assert fine == pytest.approx(slow.get_epsilon_for_delta(1e-4), rel=5e-3, abs=1e-3)


def test_where_everybody_is_in_every_step_k_records_are_k_times_the_sensitivity() -> None:
    assert epsilon_for((Event(9, 1.0, 12.0),), 1e-4, 3) == pytest.approx(
        epsilon(Event(9, 1.0, 4.0), 1e-4), rel=2e-3
    )


def test_runs_in_sequence_compose() -> None:
    one, other = Event(40, 0.05, 2.0), Event(60, 0.02, 3.0)
    both = epsilon_for((one, other), 1e-4, 2)
    assert epsilon_for((one,), 1e-4, 2) < both
    assert both > compose((one, other), 1e-4)
    assert epsilon_for((one, one), 1e-4, 2) == pytest.approx(
        epsilon_for((Event(80, 0.05, 2.0),), 1e-4, 2), rel=2e-3
    )


def test_no_noise_and_no_steps() -> None:
    assert math.isinf(epsilon_for((Event(1, 0.1, 0.0),), 1e-4, 2))
    assert epsilon_for((Event(0, 0.1, 1.0),), 1e-4, 2) == 0
    assert epsilon_for((), 1e-4, 10) == 0
