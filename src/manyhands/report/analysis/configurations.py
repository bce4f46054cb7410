"""Configurations: their names, their places on the axis, the typical repeat of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import plural

T = TypeVar("T")


def place(summary: Summary, row: Row) -> str:
    """Say where on the axis a row stands."""
    if summary.layout.x == "workers":
        return plural(row.workers, "worker")
    return f"{summary.layout.x.replace('_', ' ')} {row.x:g}"


def name(summary: Summary, row: Row) -> str:
    """Name a configuration: its group, and its place on the axis."""
    if row.group.strategy == "sequential" and summary.layout.x == "workers":
        return row.label
    return f"{row.label} with {place(summary, row)}"


def typical_run(row: Row) -> Run:
    """Return the repeat whose time is the median one."""
    ordered = sorted(row.runs, key=lambda run: run.seconds or 0)
    return ordered[(len(ordered) - 1) // 2]


def recorded(summary: Summary, reader: Callable[[Row], T], most: int = 6) -> list[tuple[Row, T]]:
    """Return the rows with such a record and several workers; of many those with most of them."""
    several = [row for row in summary.rows if row.workers > 1]
    held = [(row, record) for row in several if (record := reader(row))]
    kept = sorted(held, key=lambda pair: -pair[0].workers)[:most]
    return [pair for pair in held if pair in kept]
