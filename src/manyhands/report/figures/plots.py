"""Plots along the workers (or another option): one function per kind, each drawn on given axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from manyhands.report.analysis.configurations import name, place
from manyhands.report.analysis.run_groups import Group
from manyhands.report.analysis.spread import Spread
from manyhands.report.analysis.summary import AMOUNT, Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.records.runs import Epoch, Run
from manyhands.report.wording.formatting import THIN, beside_axis

Value = Callable[[Row], Spread | None]
Form = Callable[[float], str]
FEW, MOST = 6, 8  # configurations that are all drawn; curves that are drawn at most
WIDEST = 0.3  # between the curves that are kept apart at one place, of a worker


def styles(summary: Summary) -> Mapping[Group, theme.Style]:
    """Give every group its style; the sequential one is black."""
    found: dict[Group, theme.Style] = {}
    for group in summary.groups:
        plain = group.strategy == "sequential" and theme.SEQUENTIAL not in found.values()
        taken = sum(s is not theme.SEQUENTIAL for s in found.values())
        found[group] = theme.SEQUENTIAL if plain else theme.style(taken)
    return found


def single(value: float | None) -> Spread | None:
    """Wrap a number that has no spread of its own."""
    return None if value is None else Spread(value, value, value, 1)


def is_curve(summary: Summary) -> bool:
    """Whether lines can be drawn: few groups but the sequential one have one place on the axis."""
    places = [len(summary.of(g)) for g in summary.groups if g.strategy != "sequential"]
    lines = sum(number > 1 for number in places)
    return lines > 0 and 2 * lines >= len(places)


def along(ax: Any, summary: Summary, value: Value, form: Form, *, dodge: float = 0) -> list[Note]:
    """Draw one line per group, with the range of the repeats; `dodge` keeps ranges apart."""
    notes: list[Note] = []
    looks = styles(summary)
    places = sorted({row.x for row in summary.rows})
    dodge = min(dodge, WIDEST / len(looks))
    for i, group in enumerate(looks):
        rows = [(row, found) for row in summary.of(group) if (found := value(row))]
        if not rows:
            continue
        look = looks[group]
        shift = dodge * (i - (len(looks) - 1) / 2)
        x = [row.x + shift * (row.x if _spread_far(places) else 1) for row, _ in rows]
        y = [found.median for _, found in rows]
        ax.plot(
            x, y, color=look.colour, marker=look.marker, linestyle=look.line, label=group.label,
            markeredgecolor=theme.PAPER, markeredgewidth=0.8, zorder=3,
        )  # fmt: skip
        ranged = [(a, f) for a, (_, f) in zip(x, rows, strict=True) if f.high > f.low]
        if ranged:
            ax.vlines(
                [a for a, _ in ranged], [f.low for _, f in ranged], [f.high for _, f in ranged],
                color=look.colour, linewidth=1.4, zorder=2.5,
            )  # fmt: skip
        notes += [
            Note(group.label, place(summary, row), ranged_text(found, form), (a, found.median))
            for a, (row, found) in zip(x, rows, strict=True)
        ]
    ticks(ax, places)
    return notes


def _spread_far(places: Sequence[float]) -> bool:
    return places[0] > 0 and places[-1] / places[0] > 8


def ranged_text(found: Spread, form: Form) -> str:
    """Return a median and, where several repeats differ, their range."""
    if found.high == found.low:
        return form(found.median)
    return f"{form(found.median)} ({form(found.low)} to {form(found.high)})"


def ticks(ax: Any, places: Sequence[float]) -> None:
    """Put a tick at every place that was measured; a logarithmic axis where they spread far."""
    if _spread_far(places):
        ax.set_xscale("log", base=2)
    shown = list(places)
    if len(shown) > 9:
        shown = shown[:: -(-len(shown) // 9)]
    ax.set_xticks(shown, [f"{p:g}" for p in shown])
    ax.set_xticks([], minor=True)
    ax.grid(axis="x", visible=False)


def label_ticks(axis: Any, form: Form) -> None:
    """Label ticks by `form`, without the zeros that a tick does not need."""
    axis.set_major_formatter(lambda value, _: _trimmed(form(value)))


def _trimmed(label: str) -> str:
    number, space, unit = label.partition(THIN)
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return number + space + unit


def dots(ax: Any, summary: Summary, value: Value, form: Form) -> list[Note]:
    """Draw one line of text and a dot per configuration, where nothing varies along an axis."""
    rows = [(row, found) for row in summary.rows if (found := value(row))]
    looks = styles(summary)
    notes = []
    for i, (row, found) in enumerate(rows):
        look = looks[row.group]
        ax.hlines(i, found.low, found.high, color=look.colour, linewidth=2)
        ax.plot([found.median], [i], marker=look.marker, color=look.colour, markersize=8)
        notes.append(Note(name(summary, row), "", ranged_text(found, form), (found.median, i)))
    ax.set_yticks(range(len(rows)), [beside_axis(name(summary, row)) for row, _ in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.margins(x=0.12)
    ax.locator_params(axis="x", nbins=5)
    return notes


def core_lines(ax: Any, summary: Summary) -> None:
    """Mark the number of cores where the axis reaches it."""
    if summary.layout.x != "workers":
        return
    widest = max(row.x for row in summary.rows)
    for cores in sorted({row.cores for row in summary.rows if row.cores}):
        if 1 < cores <= widest:
            ax.axvline(cores, color=theme.MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
            ax.text(
                cores, 1.0, f"{cores} cores ", transform=ax.get_xaxis_transform(), ha="right",
                va="bottom", fontsize=9.5, color=theme.MUTED,
            )  # fmt: skip


def featured(summary: Summary) -> tuple[Row, ...]:
    """Choose the curves that are drawn: all, or of each group the first to the target; the leader.

    Without a target it is the fastest of each group, and of more or less training the longest. The
    leader takes the place of its group's, unless that is the first of all.
    """
    rows = [row for row in summary.rows if any(len(run.epochs) > 0 for run in row.runs)]
    kept = rows
    leader = summary.choice.leader if summary.choice else None
    if len(rows) > FEW and len({row.group for row in rows}) > 1:
        kept = [row for row in rows if row in first_of_groups(summary, rows)]
        earliest = min(kept, key=_soon)
        if leader in rows:
            kept = [leader if r.group == leader.group and r is not earliest else r for r in kept]
    if summary.target is not None and summary.layout.x not in AMOUNT:
        first = sorted(kept, key=_soon)
    else:
        first = kept
    if leader in rows and leader not in first[:MOST]:
        first = [leader, *first]
    return tuple(row for row in rows if row in first[:MOST])


def first_of_groups(summary: Summary, rows: Sequence[Row]) -> list[Row]:
    """Return the row of each group that is drawn where not all are."""
    by_group: dict[Group, list[Row]] = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    if summary.layout.x in AMOUNT:
        return [max(mine, key=lambda row: row.x) for mine in by_group.values()]
    return [min(mine, key=_soon) for mine in by_group.values()]


def _soon(row: Row) -> tuple[float, float]:
    """Order by the time to the target; what was not always there comes last, by its own time."""
    arrived = math.inf if row.to_target is None else row.to_target
    return arrived, row.seconds.median if row.seconds else math.inf


def path(
    row: Row, x: Callable[[Epoch], float | None], y: Callable[[Epoch], float | None]
) -> list[tuple[float, float]]:
    """Return the curve of a configuration: medians over the repeats at each evaluation.

    It has the evaluations that all repeats have; a repeat without any is left out.
    """
    found = [held for run in row.runs if (held := pairs(run, x, y))]
    return [
        (median(a for a, _ in those), median(b for _, b in those))
        for those in zip(*found, strict=False)
    ]


def pairs(
    run: Run, x: Callable[[Epoch], float | None], y: Callable[[Epoch], float | None]
) -> list[tuple[float, float]]:
    """Return the points of one run, of the evaluations that have both coordinates."""
    return [(a, b) for e in run.epochs if (a := x(e)) is not None and (b := y(e)) is not None]
