"""Comments on what runs were judged by where that is not accuracy: by its name, less or more."""

from __future__ import annotations

from typing import NamedTuple

from manyhands.report.plots import course, featured, name
from manyhands.report.tables import Row, Spread, Summary


class _Judged(NamedTuple):
    value: float
    row: Row


def ends(summary: Summary) -> list[str]:
    """Comment on the metric at the end: who is best, and whether by more than the spread."""
    rows = [_Judged(row.score.median, row) for row in summary.rows if row.score]
    if len(rows) < 2:
        return [f"The {summary.metric} is {rows[0].value:.4g}."] if rows else []
    best, worst = _extremes(summary, rows)
    high, low = ("highest", "lowest") if summary.higher else ("lowest", "highest")
    return [
        f"{name(summary, best.row)} has the {high} {summary.metric} ({best.value:.4g}), "
        f"{name(summary, worst.row)} the {low} ({worst.value:.4g})"
        f"{_beyond(best.row.score, worst.row.score)}.",
        f"{'More' if summary.higher else 'Less'} is better.",
    ]


def over_time(summary: Summary) -> list[str]:
    """Comment on the metric over time: who ends best."""
    rows = [_Judged(values[-1], row) for row in featured(summary) if (values := _values(row))]
    if not rows:
        return []
    best, _ = _extremes(summary, rows)
    if len(rows) == 1:
        return [f"The test {summary.metric} ends at {best.value:.4g}."]
    which = f"{'highest' if summary.higher else 'lowest'} {summary.metric}"
    return [f"{name(summary, best.row)} ends with the {which}, {best.value:.4g}."]


def first(summary: Summary) -> list[str]:
    """Comment on the metric after the first evaluation."""
    rows = [_Judged(values[0], row) for row in featured(summary) if (values := _values(row))]
    if len(rows) < 2:
        return [f"The first evaluation gives {rows[0].value:.4g}."] if rows else []
    best, worst = _extremes(summary, rows)
    if best.value == worst.value:
        return [f"At the first evaluation all have {best.value:.4g}."]
    return [
        f"At the first evaluation {name(summary, best.row)} leads with {best.value:.4g}, "
        f"{name(summary, worst.row)} is last with {worst.value:.4g}."
    ]


def _extremes(summary: Summary, rows: list[_Judged]) -> tuple[_Judged, _Judged]:
    """Return the best and the worst."""
    ordered = sorted(rows, key=lambda judged: judged.value, reverse=summary.higher)
    return ordered[0], ordered[-1]


def _beyond(one: Spread | None, other: Spread | None) -> str:
    apart = one.apart(other) if one and other else None
    if apart is None:
        return ""
    return ", more than the repeats differ" if apart else ", within the spread of the repeats"


def _values(row: Row) -> list[float]:
    return course(row, lambda epoch: epoch.score)
