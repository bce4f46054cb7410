"""Shares that follow speeds: where they rest, how they are bounded, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.config.options import configure
from manyhands.config.parse import Slow, parse_slow
from manyhands.data.fixed_shards import apportion
from manyhands.data.worker_batch_plan import Plan
from manyhands.errors import ConfigError
from manyhands.experiments.sweep.experiment_definition import Experiment
from manyhands.experiments.sweep.plan import make_schedule
from manyhands.strategies import STRATEGIES
from manyhands.worker.balancing import FIRST, GAIN, LEAST, WINDOW, Balance, Line, fastest, fitted

Need = Callable[[int], float]


def decisions(windows: int) -> list[int]:
    """Return the steps after which the first decisions fall."""
    return [*FIRST, *range(WINDOW, (windows + 1) * WINDOW, WINDOW)][:windows]


def settled(seconds: list[Need], batch: int, windows: int = 12) -> Balance:
    """Let workers that need `seconds` for so many examples find their shares."""
    balance = Balance(rank=0, size=len(seconds), batch_size=batch)
    for step in decisions(windows):
        parts = balance.at(step)
        balance.decide(step, [[n, need(n)] for n, need in zip(parts, seconds, strict=True)])
    return balance


def needs(fixed: float, factors: list[int]) -> list[Need]:
    """Return workers that are slower by these factors, in all that they do."""
    return [lambda n, f=f: f * (fixed + n) for f in factors]  # type: ignore[misc]


def best(seconds: list[Need], batch: int) -> float:
    """Return how soon all can be done: one example after the other to who would have it first."""
    parts = [1] * len(seconds)
    for _ in range(batch - len(seconds)):
        after = [need(n + 1) for need, n in zip(seconds, parts, strict=True)]
        parts[after.index(min(after))] += 1
    return max(need(n) for need, n in zip(seconds, parts, strict=True))


@pytest.mark.parametrize("fixed", [0.0, 5.0, 20.0, 60.0, 400.0])
@pytest.mark.parametrize("factors", [[1, 3], [1, 3, 1, 1], [1, 2, 4, 1]])
@pytest.mark.parametrize("batch", [256, 1024])
def test_shares_rest_where_the_slowest_is_done_soonest(
    fixed: float, factors: list[int], batch: int
) -> None:
    need = needs(fixed, factors)
    parts = settled(need, batch).at(10**6)
    times = [n(p) for n, p in zip(need, parts, strict=True)]
    least = [of(max(2, int(LEAST * batch / len(need)))) for of in need]
    one = max(factors)  # what one example more may take
    assert max(times) <= max((1 + GAIN) * best(need, batch) + one, *least)


@pytest.mark.parametrize("fixed", [0.0, 5.0, 20.0, 40.0])
def test_they_are_there_before_the_first_whole_window_ends(fixed: float) -> None:
    need = needs(fixed, [1, 3, 1, 1])
    parts = settled(need, batch=512, windows=len(FIRST)).at(WINDOW)
    found = max(n(p) for n, p in zip(need, parts, strict=True))
    assert found < 1.05 * best(need, 512)


def test_measurements_that_scatter_cost_little() -> None:
    scatter, need = random.Random(5), needs(20.0, [1, 3, 1, 1])
    noisy = [lambda n, k=k: need[k](n) * scatter.uniform(0.9, 1.1) for k in range(4)]
    balance = settled(noisy, batch=1024, windows=60)
    times = [max(n(p) for n, p in zip(need, h[1], strict=True)) for h in balance.history[3:]]
    assert len(times) > 5
    assert sum(times) / len(times) < 1.06 * best(need, 1024)


def test_equal_workers_keep_equal_parts() -> None:
    assert settled([lambda n: 1.0 * n] * 3, batch=128).history == [[0, [43, 43, 42]]]
    almost = settled([lambda n: 1.0 * n, lambda n: 1.01 * n], batch=128)
    assert almost.history == [[0, [64, 64]]]  # new shapes have a price too


def test_one_window_is_enough_where_time_is_in_proportion_to_the_examples() -> None:
    history = settled([lambda n: n, lambda n: 3 * n], batch=128, windows=1).history
    assert history == [[0, [64, 64]], [FIRST[0], [96, 32]]]


def test_one_odd_window_counts_less_and_less() -> None:
    odd = settled([lambda n: 1.0 * n, lambda n: 1.0 * n], batch=300)
    odd.decide(208, [[150, 150.0], [150, 290.0]])
    moved = odd.at(208)
    assert 150 < moved[0] < 198  # where that window alone would have sent it
    for step in range(224, 500, 16):
        odd.decide(step, [[n, 1.0 * n] for n in odd.at(step)])
    assert odd.at(500)[0] == pytest.approx(150, abs=2)


def test_a_worker_whose_speed_changes_much_is_known_anew_at_once() -> None:
    balance = settled([lambda n: 1.0 * n, lambda n: 1.0 * n], batch=400)
    balance.decide(208, [[200, 200.0], [200, 600.0]])
    assert balance.at(208) == [300, 100]
    balance.decide(224, [[300, 300.0], [100, 100.0]])
    assert balance.at(224) == [200, 200]


def test_nobody_falls_below_the_least_and_all_are_measured_again() -> None:
    need = [lambda n: 1.0 * n, lambda n: 1e9 * n]
    balance = settled(need, batch=400)
    assert balance.at(400) == [396, 4]
    balance.decide(400, [[n, 1.0 * n] for n in balance.at(400)])
    assert balance.at(400) == [200, 200]


def test_a_batch_of_one_example_each_stays_so() -> None:
    assert settled([lambda n: n, lambda n: 50 * n, lambda n: n], batch=3).at(999) == [1, 1, 1]


def test_nobody_is_left_with_one_example_where_batchnorm_needs_two() -> None:
    assert settled([lambda n: 1.0, lambda n: 900.0], batch=50).at(999) == [48, 2]


def cut(examples: int, parts: list[int]) -> list[int]:
    """Return what the workers have of an epoch's last batch, whose whole ones are cut so."""
    size, batch = len(parts), sum(parts)
    made = {"examples": examples, "batch_size": batch, "size": size, "seed": 0}
    plans = [Plan("balanced", rank=rank, **made) for rank in range(size)]  # type: ignore[arg-type]
    return [list(plan.epoch(1, shares=lambda _: parts))[-1].examples for plan in plans]


@pytest.mark.parametrize(
    ("examples", "parts", "last"),
    [
        (1026, [48, 2], [24, 2]),  # in proportion it would be [25, 1]
        (1050, [48, 2], [48, 2]),  # whole
        (1004, [48, 2], [2, 2]),
        (1003, [48, 2], [2, 1]),  # too few: equal, as in the unbalanced run
        (1001, [48, 2], [1, 0]),
        (65, [30, 20, 10], [2, 2, 1]),
        (67, [30, 20, 10], [3, 2, 2]),
    ],
)
def test_a_short_last_batch_leaves_nobody_with_one_example_either(
    examples: int, parts: list[int], last: list[int]
) -> None:
    assert cut(examples, parts) == last


@given(st.lists(st.integers(2, 60), min_size=1, max_size=6), st.integers(1, 500))
def test_a_short_last_batch_is_cut_whole_and_fairly(parts: list[int], more: int) -> None:
    batch = sum(parts)
    count = (more - 1) % batch + 1
    last = cut(3 * batch + count, parts)
    assert sum(last) == count
    if count < 2 * len(parts):
        assert last == apportion(count, len(parts)).tolist()
    else:
        assert min(last) >= 2
        assert all(n <= part for n, part in zip(last, parts, strict=True))


def test_a_worker_without_a_measurement_leaves_the_parts_as_they_are() -> None:
    balance = Balance(rank=0, size=2, batch_size=100)
    balance.decide(4, [[50, 1.0], []])
    assert balance.history == [[0, [50, 50]]]
    balance.decide(8, [[], [50, 3.0]])
    assert balance.at(8) == [75, 25]


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.floats(1e-9, 1e3)), min_size=1, max_size=9),
    st.integers(0, 200),
    st.integers(1, 4),
)
def test_the_fastest_parts_are_the_best_there_are(
    lines: list[tuple[float, float]], more: int, least: int
) -> None:
    given_ = [Line(*line) for line in lines]
    parts = fastest(given_, least * len(given_) + more, least)
    assert sum(parts) == least * len(given_) + more
    assert min(parts) >= least
    # Nobody could be done sooner by handing over an example, unless it has only the least.
    late = [(line(n), n) for line, n in zip(given_, parts, strict=True)]
    end = max(late)[0]
    after = min(line(n + 1) for line, n in zip(given_, parts, strict=True))
    if all(n > least for t, n in late if t == end):
        assert after >= end * (1 - 1e-9)


@given(st.lists(st.tuples(st.integers(1, 999), st.floats(1e-6, 1e3)), min_size=1, max_size=9))
def test_a_line_passes_through_the_mean_and_neither_part_is_negative(
    pairs: list[tuple[int, float]],
) -> None:
    rows = [(1.0, n, t, n * n, n * t) for n, t in pairs]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    line = fitted(*sums)
    assert line(sums[1] / sums[0]) == pytest.approx(sums[2] / sums[0])
    assert line.fixed >= -1e-9 * sums[2]
    assert line.each > 0


def test_a_checkpoint_gives_the_shares_back() -> None:
    balance = settled([lambda n: n, lambda n: 4 * n], batch=128)
    balance.window.append([16, 3.0])
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
        return [8, 6, 2] if step < 3 else [2, 3, 11]

    alone = list(plan(0, 1).epoch(4))
    together = [list(plan(rank, 3).epoch(4, shares=moving)) for rank in range(3)]
    assert [len(share.indices) for share in together[2]] == [2, 2, 2, 11, 11, 11, 3]
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
    assert parse_slow(text) == expected


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
    if STRATEGIES[name]().supports.balance:
        assert configure(options).balance == "speed"
        assert STRATEGIES[name]().supports.together
        assert not STRATEGIES[name]().supports.whole_batches
    else:
        with pytest.raises(ConfigError, match=f"balance is 'speed', but {name}"):
            configure(options)


def test_a_sweep_leaves_its_baseline_alone() -> None:
    options = {"balance": ("none", "speed"), "slow": ("1:3",), "workers": (2,)}
    runs = make_schedule(Experiment(strategies=("sync",), repeats=1, options=options)).runs
    told = [(r.config["strategy"], r.config["balance"], r.config["slow"]) for r in runs]
    assert told == [
        ("sequential", "none", None), ("sync", "none", "1:3"), ("sync", "speed", "1:3"),
    ]  # fmt: skip
