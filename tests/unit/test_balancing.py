"""Shares that follow speeds: where they rest, how they are bounded, and what is refused."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands import balancing, slowing
from manyhands.balancing import WINDOW, Balance, bounded
from manyhands.data.plan import Plan
from manyhands.errors import ConfigError
from manyhands.experiments import Experiment
from manyhands.options import configure
from manyhands.planning import schedule
from manyhands.slowing import Slow, parse
from manyhands.strategies import STRATEGIES


def settled(seconds: list[Callable[[int], float]], batch: int, windows: int = 12) -> Balance:
    """Let workers that need `seconds` for so many examples find their shares."""
    balance = Balance(rank=0, size=len(seconds), batch_size=batch)
    for window in range(1, windows + 1):
        parts = balance.at(window * WINDOW)
        speeds = [n / need(n) for n, need in zip(parts, seconds, strict=True)]
        balance.decide(window * WINDOW, speeds)
    return balance


@pytest.mark.parametrize("fixed", [0.0, 2.0, 20.0])
@pytest.mark.parametrize("factors", [[1, 3], [1, 1, 1, 3], [1, 2, 4, 1]])
def test_shares_rest_where_all_need_the_same_time(fixed: float, factors: list[int]) -> None:
    need = [lambda n, f=f: fixed + f * n for f in factors]
    parts = settled(need, batch=1024, windows=40).at(10**6)
    times = [n(p) for n, p in zip(need, parts, strict=True)]
    assert max(times) < 1.02 * min(times)


def test_equal_workers_keep_equal_parts() -> None:
    assert settled([lambda n: 1.0 * n] * 3, batch=128).history == [[0, [43, 43, 42]]]


def test_one_window_is_enough_where_time_is_in_proportion_to_the_examples() -> None:
    history = settled([lambda n: n, lambda n: 3 * n], batch=128, windows=1).history
    assert history == [[0, [64, 64]], [WINDOW, [96, 32]]]


def test_one_odd_window_moves_the_shares_half_way() -> None:
    balance = Balance(rank=0, size=2, batch_size=300)
    balance.decide(16, [1.0, 1.0])
    balance.decide(32, [1.0, 0.0])
    assert balance.at(32) == [200, 100]
    balance.decide(48, [1.0, 1.0])
    assert balance.at(48) == [171, 129]


def test_nobody_falls_below_a_tenth_of_an_equal_share_and_all_are_measured_again() -> None:
    balance = Balance(rank=0, size=2, batch_size=200)
    for step in range(16, 200, 16):
        balance.decide(step, [1.0, 1e-9])
    assert balance.at(200) == [190, 10]
    for step in range(208, 600, 16):
        balance.decide(step, [1.0, 1.0])
    assert balance.at(600) == [100, 100]


def test_a_batch_of_one_example_each_stays_so() -> None:
    assert settled([lambda n: n, lambda n: 50 * n, lambda n: n], batch=3).at(999) == [1, 1, 1]


@given(
    st.lists(st.floats(0, 1e9), min_size=1, max_size=12).filter(lambda s: sum(s) > 0),
    st.floats(0, 1),
)
def test_bounded_shares_sum_to_one_and_none_is_below_the_least(
    speeds: list[float], part: float
) -> None:
    least = part / len(speeds)
    shares = bounded(speeds, least)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= least - 1e-9
    order = np.argsort(speeds)
    assert (np.diff(np.array(shares)[order]) >= -1e-9).all()  # the faster never gets less


def test_a_checkpoint_gives_the_shares_back() -> None:
    balance = settled([lambda n: n, lambda n: 4 * n], batch=128)
    balance.window.append(3.0)
    state = balance.state()
    again = Balance(rank=1, size=2, batch_size=128)
    again.restore(state, step=500)
    assert again.state() == state
    other = Balance(rank=1, size=3, batch_size=128)
    other.restore(state, step=500)
    assert other.history == [[500, [43, 43, 42]]]
    assert other.at(10) == other.at(500) == [43, 43, 42]


def test_a_plan_that_follows_shares_cuts_the_same_global_batches() -> None:
    def plan(rank: int, size: int) -> Plan:
        return Plan("balanced", examples=103, batch_size=16, rank=rank, size=size, seed=3)

    def moving(step: int) -> list[int]:
        return [8, 6, 2] if step < 3 else [1, 1, 14]

    alone = list(plan(0, 1).epoch(4))
    together = [list(plan(rank, 3).epoch(4, shares=moving)) for rank in range(3)]
    assert [len(share.indices) for share in together[2]] == [2, 2, 2, 14, 14, 14, 6]
    for step, whole in enumerate(alone):
        parts = [mine[step] for mine in together]
        assert np.concatenate([p.indices for p in parts]).tolist() == whole.indices.tolist()
        assert {p.total for p in parts} == {whole.total}
    late = [s.indices.tolist() for s in plan(1, 3).epoch(4, start=5, shares=moving)]
    assert late == [s.indices.tolist() for s in together[1][5:]]
    told = plan(0, 3).describe(4, moving)
    assert [w["examples"] for w in told["workers"]] == [
        sum(len(s.indices) for s in mine) for mine in together
    ]
    assert told["seen"] == 103


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:1", Slow(0, 1.0)), ("1:2.5", Slow(1, 2.5)), ("2:3:sleep", Slow(2, 3.0, True))],
)
def test_slow_is_taken_apart(text: str, expected: Slow) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "1", "1:", "1:x", "1:0.5", "1:-3", "1:0", "1:nan", "1:inf", "-1:2", "1:3:nap",
             "1:3:", "x:3", "1:3:sleep:"],
)  # fmt: skip
def test_a_worker_that_cannot_be_slowed_so_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"slow is .*expected RANK:FACTOR"):
        configure({"slow": text})


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"balance": "sped"}, "balance is 'sped'; expected one of none, speed"),
        ({"slow": "2:3"}, "slow is '2:3', but there are 2 workers; expected a rank from 0 to 1"),
        ({"partition": "random-partition"}, "partition random-partition fixes who sees what"),
        ({"partition": "random-sampling"}, "partition random-sampling fixes"),
        ({"partition": "balanced", "shares": (0.5, 0.5)}, "shares are given"),
        ({"private": True, "epsilon": 3.0}, "samples all records at one rate"),
        ({"batch_size": 1}, "at least one example per worker"),
    ],
)
def test_a_balance_that_cannot_work_is_refused(given_: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure({"balance": "speed", **given_})


@pytest.mark.parametrize("name", STRATEGIES)
def test_only_strategies_that_sum_gradients_can_be_balanced(name: str) -> None:
    options = {"strategy": name, "balance": "speed", "workers": 1}
    if STRATEGIES[name].supports.balance:
        assert configure(options).balance == "speed"
        assert STRATEGIES[name].supports.together
        assert not STRATEGIES[name].supports.whole_batches
    else:
        with pytest.raises(ConfigError, match=f"balance is 'speed', but {name}"):
            configure(options)


def test_a_sweep_leaves_its_baseline_alone() -> None:
    options = {"balance": ("none", "speed"), "slow": ("1:3",), "workers": (2,)}
    runs = schedule(Experiment(strategies=("sync",), repeats=1, options=options)).runs
    told = [(r.config["strategy"], r.config["balance"], r.config["slow"]) for r in runs]
    assert told == [
        ("sequential", "none", None), ("sync", "none", "1:3"), ("sync", "speed", "1:3"),
    ]  # fmt: skip


@pytest.mark.parametrize("module", [balancing, slowing])
def test_examples_run(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
