"""What is said of the leader: what is faster than one worker, and what the test confirms."""

from __future__ import annotations

from typing import Any

from report_cases import said, summary, timed

from manyhands.report.sections.answer import answer


def rounds(*cases: tuple[str, int, tuple[float, ...]], **more: Any) -> list[Any]:
    """Return the repeats of (strategy, workers, seconds of each round), which took turns."""
    found = []
    for i in range(len(cases[0][2])):
        for k, (strategy, workers, times) in enumerate(cases):
            run = timed(strategy, workers, times[i], repeat=i, **more)
            run["started"] = f"2026-03-01T{10 + i:02}:{k:02}:00+00:00"
            found.append(run)
    return found


def test_what_was_faster_in_every_round_is_counted_though_no_test_tells_it() -> None:
    runs = rounds(
        ("sequential", 1, (10.0, 12.0)), ("sync", 2, (6.0, 5.0)), ("sync", 4, (3.0, 4.0)),
        ("averaging", 2, (11.0, 13.0)), ("averaging", 4, (9.0, 13.0)),
    )  # fmt: skip
    told = said(answer(summary(*runs)))
    assert (
        "Of 4 configurations with several workers, 2 were faster than the sequential run in every "
        "round (1.67× to 3.33×), 1 was slower (0.91× to 0.92×) and 1 was neither; the test "
        "confirms none of them."
    ) in told


def test_what_took_longer_in_every_round_is_slower() -> None:
    cases = (("sequential", 1, (10.0, 12.0)), ("sync", 2, (20.0, 21.0)), ("sync", 4, (15.0, 16.0)))
    told = said(answer(summary(*rounds(*cases))))
    assert "all 2 were slower than the sequential run in every round (0.50× to 0.75×);" in told


def test_speed_ups_against_different_runs_have_no_common_range() -> None:
    runs = []
    for rate, pace in ((0.1, 1.0), (0.2, 2.0)):
        cases = [("sequential", 1, 10.0), ("sync", 2, 6.0), ("sync", 4, 4.0)]
        taken = [(s, p, (pace * t, pace * t + 0.1)) for s, p, t in cases]
        runs += rounds(*taken, lr=rate)
    told = said(answer(summary(*runs)))
    assert "all 4 were faster than the sequential run of their own task in every round;" in told
    assert "as fast as sequential · lr 0.1" in told


def test_a_configuration_without_a_reference_is_counted() -> None:
    cases = (("sequential", 1, (10.0, 12.0)), ("sync", 2, (6.0, 7.0)), ("averaging", 2, (6.1, 7.2)))
    runs = [*rounds(*cases), *rounds(("gossip", 2, (8.0, 8.1)), lr=0.5)]
    told = said(answer(summary(*runs)))
    assert "Of 3 configurations with several workers, 2 were faster than" in told
    assert "; 1 has no reference; the test confirms " in told
