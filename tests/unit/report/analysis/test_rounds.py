"""Ratios within rounds, their ranges, and what keeps times of two machines apart."""

from __future__ import annotations

import math
import random
import re
import statistics
from typing import Any

import committed_records
import pytest
from report_cases import said, summary, timed

from manyhands.report import _summary
from manyhands.report.analysis.rounds import ratio, rounds
from manyhands.report.analysis.significance import compare, paired, welch
from manyhands.report.analysis.summary import Summary
from manyhands.report.sections import asynchronous_topic, scaling_law_topic
from manyhands.report.sections.answer import answer
from manyhands.report.sections.what_was_compared import what_was_compared


def drifting(turns: bool = True) -> list[Any]:
    """Return three rounds on a machine that gets slower: sync takes 4, 6 and 9 s, half of alone."""
    runs = []
    for i, slow in enumerate((1.0, 1.5, 2.25)):
        for j, (strategy, workers, time) in enumerate((("sequential", 1, 8.0), ("sync", 2, 4.0))):
            run = timed(strategy, workers, time * slow * (1 + 0.01 * i * j), repeat=i)
            hour, minute = (10 + i, 10 + j) if turns else (10 + j, 10 + i)
            run["started"] = f"2026-03-01T{hour}:{minute}:00+00:00"
            runs.append(run)
    return runs


def rows(found: Summary, *labels: str) -> list[Any]:
    return [next(row for row in found.rows if row.label == label) for label in labels]


def test_repeats_that_took_turns_are_divided_round_by_round() -> None:
    alone, sync = rows(summary(*drifting()), "sequential", "sync")
    assert rounds(alone.runs, sync.runs)
    found = ratio("seconds", alone.runs, sync.runs)
    assert found is not None
    expected = [2 / (1 + 0.01 * i) for i in range(3)]
    assert (found.low, found.median, found.high) == pytest.approx(tuple(sorted(expected)))
    assert sync.ranged_speedup == found


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_where_a_repeat_is_missing_the_ratio_is_that_of_the_rounds_that_both_have(
    gone: int,
) -> None:
    """Rounds slow down from 4 to 9 s, so all pairs would give far more than what any round has."""
    runs = [
        r for r in drifting() if (r["config"]["strategy"], r["config"]["seed"]) != ("sync", gone)
    ]
    alone, sync = rows(summary(*runs), "sequential", "sync")
    assert [(a.config["seed"], b.config["seed"]) for a, b in rounds(alone.runs, sync.runs)] == [
        (seed, seed) for seed in range(3) if seed != gone
    ]
    expected = sorted(2 / (1 + 0.01 * i) for i in range(3) if i != gone)
    found = sync.ranged_speedup
    assert (found.low, found.high) == pytest.approx((expected[0], expected[-1]))
    assert found.median == pytest.approx(statistics.mean(expected))
    assert found.count == 2


def test_a_ratio_within_rounds_beside_medians_is_said_to_be_one() -> None:
    """The medians are 9 and 8 s, which is 1.13; within rounds it is 2, 1.25 and 1.14."""
    runs = []
    for i, times in enumerate(((2.0, 1.0), (10.0, 8.0), (9.0, 7.9))):
        for j, (strategy, taken) in enumerate(zip(("sync", "hogwild"), times, strict=True)):
            run = timed(strategy, 2, taken, repeat=i)
            run["started"] = f"2026-03-01T{10 + i}:{10 + j}:00+00:00"
            runs.append(run)
    told = said(answer(summary(*runs)))
    assert "Sync with 2 workers is 25 % behind within rounds; with this spread" in told


def asynchronous(turns: bool) -> list[Any]:
    """Return three repeats whose medians are 5.5 and 9.9 s: 1.80, but 1.65 within rounds."""
    runs = []
    for i, times in enumerate(((5.0, 10.0), (5.5, 9.0), (6.0, 9.9))):
        for j, (strategy, taken) in enumerate(zip(("hogwild", "sync"), times, strict=True)):
            run = timed(strategy, 2, taken, repeat=i)
            hour, minute = (10 + i, 10 + j) if turns else (10 + j, 10 + i)
            run["started"] = f"2026-03-01T{hour}:{minute}:00+00:00"
            runs.append(run)
    return runs


def test_a_pace_within_rounds_is_not_shown_as_the_ratio_of_the_times() -> None:
    told = said(asynchronous_topic.sentences(summary(*asynchronous(True))))
    assert "5.50 s and sync in 9.90 s; within rounds, hogwild is 1.65 times (1.64 to 2.00)" in told
    told = said(asynchronous_topic.sentences(summary(*asynchronous(False))))
    assert "5.50 s and sync in 9.90 s: hogwild is 1.80 times (1.50 to 2.00) as fast" in told


def test_seeds_that_repeat_match_no_rounds() -> None:
    runs = drifting()[:5]
    for run in runs:
        run["config"]["seed"] = 0
    alone, sync = rows(summary(*runs), "sequential", "sync")
    assert not rounds(alone.runs, sync.runs)


def test_rounds_that_both_have_are_tested_in_pairs() -> None:
    """Three of four rounds are enough for the paired test, which Welch's would not see."""
    runs = []
    for i, slow in enumerate((1.0, 1.5, 2.25, 3.4)):
        for j, (strategy, time) in enumerate((("sync", 4.0), ("gossip", 4.4))):
            if (i, strategy) != (3, "gossip"):
                run = timed(strategy, 2, time * slow * (1 + 0.01 * i * j), repeat=i)
                run["started"] = f"2026-03-01T{10 + i}:{10 + j}:00+00:00"
                runs.append(run)
    sync, gossip = rows(summary(*runs), "sync", "gossip")
    logs = [[math.log(run.seconds or 1) for run in row.runs] for row in (sync, gossip)]
    verdict = compare(sync, gossip, "seconds")
    assert verdict.parameters["rounds"] == 3
    assert verdict.p == pytest.approx(paired(logs[0][:3], logs[1]))
    assert verdict.apart
    assert (welch(*logs) or 0) > 0.05


def test_a_committed_sweep_with_fewer_repeats_states_the_rounds_it_has() -> None:
    """The median of three over that of two said 4.08 for rounds of 3.37 and 4.01."""
    times: dict[tuple[str, int], float] = {}
    for record in committed_records.runs("gossip").values():
        config = record["config"]
        if config["strategy"] == "sequential" or (
            config.get("topology") == "ring" and config["workers"] == 8
        ):
            times[config["strategy"], config["seed"]] = record["result"]["seconds"]
    ratios = [
        times["sequential", seed] / time for (name, seed), time in times.items() if name == "gossip"
    ]
    assert len(ratios) == 2
    found = _summary([committed_records.packed("gossip")])
    (row,) = (r for r in found.rows if r.label == "gossip · ring" and r.workers == 8)
    speedup = row.ranged_speedup
    assert speedup is not None
    assert (speedup.low, speedup.median, speedup.high) == pytest.approx(
        (min(ratios), statistics.mean(ratios), max(ratios))
    )


def test_repeats_in_blocks_give_the_range_of_all_pairs() -> None:
    alone, sync = rows(summary(*drifting(turns=False)), "sequential", "sync")
    assert not rounds(alone.runs, sync.runs)
    found = sync.ranged_speedup
    times = [[run.seconds for run in row.runs] for row in (alone, sync)]
    assert found.low == pytest.approx(min(times[0]) / max(times[1]))
    assert found.high == pytest.approx(max(times[0]) / min(times[1]))
    assert found.median == pytest.approx(statistics.median(times[0]) / statistics.median(times[1]))


@pytest.mark.parametrize("name", ["momentum", "allreduce"])
def test_a_committed_speed_up_is_that_of_its_rounds(name: str) -> None:
    """The ratio of the medians said 1.5 and 1.9; the rounds say less."""
    found = _summary([committed_records.packed(name)])
    leader = found.choice.leader if found.choice else None
    assert leader is not None
    raw = committed_records.runs(name)
    starts = [
        sorted((raw[run.where]["started"], raw[run.where]["result"]["seconds"]) for run in runs)
        for runs in (leader.reference, leader.runs)
    ]
    rounds = [base / mine for (_, base), (_, mine) in zip(*starts, strict=True)]
    assert leader.shown_speedup == pytest.approx(statistics.median(rounds))
    words = said(answer(found))
    assert f"{statistics.median(rounds):.2f} times" in words
    assert f"({min(rounds):.2f} to {max(rounds):.2f}) as fast as" in words


def test_the_paired_test_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    one, other = [2.0, 1.5, 1.1, 0.9], [1.1, 1.0, 0.8, 0.3]
    assert paired(one, other) == pytest.approx(stats.ttest_rel(one, other).pvalue, rel=1e-6)
    assert paired([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired([2.0, 3.0], [1.0, 2.0]) is None


def test_others_that_vary_more_hide_no_difference() -> None:
    """A variance pooled over all hid what Welch's test of the two shows."""
    runs = [timed("sync", 2, 5, 0.97 + 0.0001 * i, repeat=i) for i in range(3)]
    runs += [timed("gossip", 2, 5, 0.96 + 0.0001 * i, repeat=i) for i in range(3)]
    runs += [timed("server", 2, 5, a, repeat=i) for i, a in enumerate((0.70, 0.95, 0.85))]
    sync, gossip = rows(summary(*runs), "sync", "gossip")
    values = [[run.accuracy for run in row.runs] for row in (sync, gossip)]
    alone = welch(*values)
    assert alone is not None
    verdict = compare(sync, gossip, "accuracy", 3)
    assert verdict.p == pytest.approx(3 * alone)
    assert verdict.apart


def test_a_false_winner_is_rare_without_a_correction() -> None:
    """Of equal configurations one is called best in at most five of a hundred sweeps."""
    rng = random.Random(5)
    for count in (2, 3, 8):
        crowned = 0
        for _ in range(400):
            held = [[rng.gauss(0, 1) for _ in range(3)] for _ in range(count)]
            held.sort(key=statistics.fmean)
            p = [welch(held[0], other) for other in held[1:]]
            crowned += all(each is not None and each <= 0.05 for each in p)
        assert crowned / 400 <= 0.07, count  # 0.05, and 1.8 standard errors of 400 sweeps


def test_a_bound_has_its_range_or_is_not_stated() -> None:
    runs = []
    for i in range(3):
        for p in (1, 2, 4, 8):
            serial = 0.1 + 0.02 * i
            name = "sequential" if p == 1 else "sync"
            runs.append(timed(name, p, 10 * (serial + (1 - serial) / p), repeat=i, cores=8))
            runs[-1]["started"] = f"2026-03-01T1{i}:1{p}:00+00:00"
    found = summary(*runs)
    (fit,) = found.fits.values()
    words = said(list(scaling_law_topic.sentences(found)))
    assert fit.least is not None
    assert fit.most is not None
    assert fit.least < fit.serial < fit.most
    assert re.search(r"at most [\d.]+ times \([\d.]+ to [\d.]+\) as fast as", words)
    single = summary(*(run for run in runs[:3]))  # one run each, two points: no range is known
    assert "at most" not in said(list(scaling_law_topic.sentences(single)))


def test_times_of_two_machines_are_not_compared() -> None:
    runs = [timed("sequential", 1, 20, repeat=i, cores=2) for i in range(2)]
    runs += [timed("sync", 4, 4, repeat=i, cores=4) for i in range(2)]
    found = summary(*runs)
    assert found.machines == 2
    assert found.choice is None
    assert [row.speedup for row in found.rows if row.label == "sync"] == [None]
    assert said(answer(found)).startswith("These runs are of different machines")


def test_the_private_record_of_two_machines_states_no_speed_up_across_them() -> None:
    found = _summary([committed_records.packed("private-strategies-cnn")])
    assert found.machines == 2
    raw = committed_records.runs("private-strategies-cnn")
    for row in found.rows:
        kinds = {raw[run.where]["machine"]["cores"] for run in (*row.runs, *row.reference)}
        assert row.ranged_speedup is None or len(kinds) == 1
    assert "5.76" not in said(answer(found))


def test_each_strategy_has_its_own_numbers_of_workers() -> None:
    runs = [timed("sequential", 1, 9), *(timed("sync", p, 9 / p) for p in (2, 4))]
    runs += [timed("gossip", 8, 2), timed("server", 8, 2)]
    words = said(what_was_compared(summary(*runs)))
    assert "sequential, sync with 2 and 4 workers, gossip and server with 8 workers" in words


NAMED = {
    "psgd": "averaging", "hogwild": "hogwild", "gossip": "gossip", "parameter server": "server",
    "synchronous sgd": "sync",
}  # fmt: skip


@pytest.mark.parametrize("name", committed_records.readable())
def test_title_and_question_promise_no_strategy_that_is_not_there(name: str) -> None:
    found = _summary([committed_records.packed(name)])
    there = {run.strategy for run in found.loaded.runs}
    for source in found.loaded.sources:
        words = f"{source.title} {source.question}".lower()
        promised = {s for word, s in NAMED.items() if word in words}
        assert promised <= there, words


def test_the_epsilon_stated_first_is_that_of_the_leader() -> None:
    found = _summary([committed_records.packed("private-workers-to-accuracy")])
    assert found.choice is not None
    first = said(answer(found)[:3])
    epsilon = found.choice.leader.runs[0].privacy["epsilon_pld"]
    assert f"was planned for ε = {epsilon:.2f}" in first
    assert "all 15 private runs" not in first


def test_logarithms_of_times_decide() -> None:
    runs = [timed("sync", 2, t, repeat=i) for i, t in enumerate((5, 5.2, 5.1))]
    runs += [timed("gossip", 2, t, repeat=i) for i, t in enumerate((6, 6.3, 6.1))]
    sync, gossip = rows(summary(*runs), "sync", "gossip")
    logs = [[math.log(run.seconds or 1) for run in row.runs] for row in (sync, gossip)]
    assert compare(sync, gossip, "seconds").p == pytest.approx(welch(*logs))
