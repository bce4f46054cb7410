"""Why times should not be relied on: what is said of runs that could be judged."""

from __future__ import annotations

from report_cases import said, summary, timed

from manyhands.report.sections.doubts import doubts


def test_runs_with_more_processes_than_cores_are_not_among_those_that_others_slowed() -> None:
    quiet, busy = timed("sequential", 1, 30), timed("sync", 2, 16)
    for process in busy["workers"]:
        process["user"] = 0.5 * process["compute"]
    crowded = timed("sync", 8, 16)
    told = said(doubts(summary(quiet, busy, crowded)))
    assert (
        "Other programs slowed 1 of the 2 runs that had a core for each process: in the worst, a "
        "worker had no core for at least "
    ) in told
