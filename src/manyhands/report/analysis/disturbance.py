"""Which runs shared their machine with another run while they were timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from manyhands.report.records.runs import Run

TOGETHER = 0.05  # of a run's time: a shorter overlap is that of clocks in whole seconds


def marked(runs: Sequence[Run]) -> list[Run]:
    """Mark the runs during which another run used the same machine."""
    spans = [(span, run) for run in runs if (span := _span(run))]
    beside = {
        run.where
        for (begin, end), run in spans
        for (other_begin, other_end), other in spans
        if other.where != run.where
        and other.machine.get("hosts") == run.machine.get("hosts")
        and min(end, other_end) - max(begin, other_begin) > max(1.0, TOGETHER * (end - begin))
    }
    return [replace(run, beside=True) if run.where in beside else run for run in runs]


def _span(run: Run) -> tuple[float, float] | None:
    """Return when a run began and ended, in seconds since 1970."""
    try:
        begin = datetime.fromisoformat(run.started.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
    return None if run.whole is None else (begin, begin + run.whole)
