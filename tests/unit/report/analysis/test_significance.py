"""The test that decides which differences a report claims."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from report_cases import summary, timed

from manyhands.report.analysis import significance
from manyhands.report.analysis.rounds import rounds
from manyhands.report.analysis.significance import compare, pairs, two_sided, welch


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [
        (12.7062, 1, 0.05), (4.30265, 2, 0.05), (3.18245, 3, 0.05), (2.22814, 10, 0.05),
        (63.6567, 1, 0.01), (9.92484, 2, 0.01), (4.60409, 4, 0.01), (2.75, 30, 0.01),
        (31.5991, 2, 0.001), (8.6103, 4, 0.001), (1.0, 1, 0.5),
    ],
)  # fmt: skip
def test_the_tail_of_student_is_that_of_the_tables(t: float, degrees: float, p: float) -> None:
    assert two_sided(t, degrees) == pytest.approx(p, rel=1e-4)


def test_the_tail_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = random.Random(0)
    for _ in range(200):
        t, degrees = 10 ** rng.uniform(-3, 3), rng.uniform(1, 80)
        assert two_sided(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-7)


def test_a_published_example_of_welch() -> None:
    # Two samples of unequal variance whose t and df follow by hand: t = -5, df = 4.
    assert welch([1, 2, 3], [2 + 5 * math.sqrt(2 / 3) + d for d in (-1, 0, 1)]) == pytest.approx(
        two_sided(5, 4)
    )


def test_what_has_no_spread_is_not_told_apart() -> None:
    assert welch([0.9], [0.8, 0.7]) is None
    assert welch([0.9, 0.9], [0.9, 0.9]) == 1.0
    assert welch([0.9, 0.9], [0.8, 0.8]) is None  # repeats that are alike are no repeats
    assert welch([0.9, 0.9], [0.8, 0.8001]) is not None


def test_the_p_value_is_multiplied_by_the_comparisons() -> None:
    runs = [timed(s, 2, t, repeat=i) for s, times in (("sync", (5, 5.2)), ("gossip", (6, 6.3)))
            for i, t in enumerate(times)]  # fmt: skip
    one, other = summary(*runs).rows
    alone = welch([math.log(5), math.log(5.2)], [math.log(6), math.log(6.3)])
    assert alone is not None
    assert compare(one, other, "seconds").p == pytest.approx(alone)
    assert compare(one, other, "seconds", 3).p == pytest.approx(3 * alone)
    assert compare(one, other, "seconds", 1000).p == 1.0
    assert [pairs(count) for count in (1, 2, 3, 5)] == [1, 1, 3, 10]


def test_steady_repeats_of_others_do_not_tell_two_unsteady_ones_apart() -> None:
    steady = [timed("sync", p, 5 + 0.001 * i, 0.98 + 1e-5 * i, repeat=i)
              for p in (2, 4, 8) for i in range(3)]  # fmt: skip
    wild = [timed("gossip", 2, 5, a, repeat=i) for i, a in enumerate((0.90, 0.60, 0.97))]
    rows = summary(*steady, *wild).rows
    gossip = next(row for row in rows if row.label == "gossip")
    verdict = compare(gossip, rows[0], "accuracy")
    assert not verdict.apart
    far = [timed("gossip", 2, 5, a, repeat=i) for i, a in enumerate((0.30, 0.25, 0.28))]
    rows = summary(*steady, *far).rows
    gossip = next(row for row in rows if row.label == "gossip")
    assert compare(gossip, rows[0], "accuracy", pairs(4)).apart


def drifting(turns: bool) -> list[Any]:
    """Return runs on a machine that gets faster; in turns, or each configuration by itself."""
    runs = []
    cases = (("sequential", 1, 8.0), ("sync", 2, 6.0), ("hogwild", 2, 5.0))
    for i, drift in enumerate((1.0, 0.7, 0.5)):
        for j, (strategy, workers, time) in enumerate(cases):
            noise = 1 + 0.01 * ((i * 7 + j * 5) % 4)
            run = timed(strategy, workers, time * drift * noise, repeat=i)
            if turns:
                run["started"] = f"2026-03-01T{10 + i}:{10 + j}:00+00:00"
            runs.append(run)
    return runs


def test_interleaved_runs_are_compared_within_their_rounds() -> None:
    apart, alone = summary(*drifting(True)), summary(*drifting(False))
    for found, told in ((apart, True), (alone, False)):
        first, *_, last = found.rows
        verdict = compare(first, last, "seconds", 2)
        assert verdict.apart is told
        assert ("rounds" in verdict.parameters) is told
        assert ("took turns" in str(significance.method(found.rows))) is told


def test_two_rounds_are_too_few_for_pairs() -> None:
    found = summary(*drifting(True)[:6])
    first, *_, last = found.rows
    assert "rounds" not in compare(first, last, "seconds", 2).parameters
    assert compare(first, first, "seconds").p == 1
    assert "took turns" not in str(significance.method(found.rows))


def test_rounds_that_overlap_are_no_rounds() -> None:
    runs = drifting(True)
    runs[2]["started"] = "2026-03-01T11:30:00+00:00"
    first, *_, last = summary(*runs).rows
    assert not rounds(first.runs, last.runs)
