"""Learning curves: how loss or accuracy went, one axes for a few of them, a panel each for many.

A bold line is the median over the repeats at each evaluation; the band is the range of their times.
A time axis ends with the last curve that is no outlier, and the picture says which go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyhands.report.analysis.configurations import name
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.figures.plots import Form, featured, pairs, path, styles
from manyhands.report.records.runs import Epoch
from manyhands.report.wording.formatting import beside_axis

Reader = Callable[[Epoch], float | None]
FEW = 4  # curves that can be told apart on one axes
COLUMNS = 3
PANEL = 136  # points from one row of panels to the next
_GAP, _HEAD = 14, 46  # points between panels, and above one for its name
_WIDTH = 414  # points of all panels together
_FENCE = 1.5  # times the quartiles' distance: an outlier ends later (Tukey)
_WIDE = 24  # characters above a panel that fit its width
_LOW = 20  # percentile of the accuracies from which on the axis shows them


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One configuration's line: its points, and the range of the repeats' places."""

    label: str
    look: theme.Style
    points: Sequence[tuple[float, float]]
    ranges: Sequence[tuple[float, float]]


def height(summary: Summary, x: Reader, y: Reader) -> int:
    """Return how tall the plot must be, in points."""
    count = len(_curves(summary, x, y))
    return 230 if count <= FEW else PANEL * math.ceil(count / COLUMNS) - _GAP


def _curves(summary: Summary, x: Reader, y: Reader) -> list[Curve]:
    rows = featured(summary)
    looks = styles(summary)
    alone = len({row.group for row in rows}) < len(rows)
    return [
        Curve(
            label=name(summary, row),
            look=theme.style(i) if alone else looks[row.group],
            points=points,
            ranges=_ranges(row, x, y),
        )
        for i, row in enumerate(rows)
        if (points := path(row, x, y))
    ]


def _ranges(row: Row, x: Reader, y: Reader) -> list[tuple[float, float]]:
    """Return the least and the most place of the repeats at each evaluation."""
    held = [[a for a, _ in found] for run in row.runs if (found := pairs(run, x, y))]
    return [(min(places), max(places)) for places in zip(*held, strict=False)]


def draw(
    ax: Any,
    summary: Summary,
    x: Reader,
    y: Reader,
    forms: tuple[Form, Form],
    *,
    timed: bool,
    zoom: bool,
) -> list[Note]:
    """Draw the curves.

    Args:
        ax: The axes.
        summary: What the records say.
        x: What reads an evaluation's place.
        y: What reads its value.
        forms: How a place and a value are written.
        timed: Whether the places are times, of which outliers are cut off.
        zoom: Whether the first steps may lie below the axis, so that the ends can be told apart.
    """
    found = _curves(summary, x, y)
    ends = [curve.points[-1][0] for curve in found]
    last = _last(ends) if timed else max(ends)
    if len(found) <= FEW:  # none may vanish: no panel says that it is cut off
        last = max([last, *(c.points[-1][0] for c in found if c.points[0][0] > last)])
    limits = (1.03 * last, _floor(found) if zoom else None)
    if len(found) <= FEW:
        for curve in found:
            _line(ax, curve, limits[0], label=True)
        late = [c for c in found if c.points[-1][0] > last]
        words = [f"{c.label} goes on to {forms[0](c.points[-1][0])}" for c in late]
        ax.text(1, 0.02, "\n".join(words), transform=ax.transAxes, ha="right", va="bottom",
                fontsize=9.5, color=theme.MUTED)  # fmt: skip
        _limit(ax, limits)
        return [note for curve in found for note in _notes(ax, curve, forms, limits[0])]
    return _panels(ax, found, forms, last, limits)


def _last(ends: Sequence[float]) -> float:
    """Return the latest end that is no outlier among all."""
    low, high = np.percentile(ends, [25, 75])
    return max(end for end in ends if end <= high + _FENCE * (high - low))


def _floor(found: Sequence[Curve]) -> float | None:
    """Return where the axis begins, if a few early values would take most of its height."""
    values = [value for curve in found for _, value in curve.points]
    low = float(np.percentile(values, _LOW))
    least, top = min(values), max(values)
    early = all(value >= low for curve in found for _, value in curve.points[-1:])
    return low - 0.1 * (top - low) if early and top - low < 0.5 * (top - least) else None


def _limit(ax: Any, limits: tuple[float, float | None]) -> None:
    right, floor = limits
    ax.set_xlim(0, right)
    if floor is not None:
        ax.set_ylim(bottom=floor)
    ax.grid(axis="x", visible=False)


def _cut(points: Sequence[tuple[float, float]], right: float) -> list[tuple[float, float]]:
    """Return the points up to the axis's end, and where the line to the next crosses it.

    >>> _cut([(0, 0), (2, 4), (4, 8)], 3)
    [(0, 0), (2, 4), (3, 6.0)]
    """
    kept = [point for point in points if point[0] <= right]
    if kept and len(kept) < len(points):
        (a, low), (b, high) = kept[-1], points[len(kept)]
        kept.append((right, low + (high - low) * (right - a) / (b - a)))
    return kept


def _line(ax: Any, curve: Curve, right: float, *, label: bool) -> None:
    heights = [value for _, value in curve.points]
    lows, highs = np.minimum(np.array(curve.ranges, dtype=float), right).T
    if (lows != highs).any():
        ax.fill_betweenx(heights, lows, highs, color=curve.look.colour, alpha=0.2, linewidth=0)
    shown = _cut(curve.points, right)
    ax.plot(
        *np.reshape(shown, (-1, 2)).T, color=curve.look.colour, marker=curve.look.marker,
        markevery=[i for i, (place, _) in enumerate(curve.points) if place <= right],
        linestyle=curve.look.line, markersize=4, linewidth=1.8, zorder=3,
        label=curve.label if label else None,
    )  # fmt: skip


def _notes(ax: Any, curve: Curve, forms: tuple[Form, Form], right: float) -> list[Note]:
    place, value = forms
    return [
        Note(curve.label, place(a), value(b), (min(a, right), b), axes=ax) for a, b in curve.points
    ]


def _panels(
    ax: Any,
    found: Sequence[Curve],
    forms: tuple[Form, Form],
    last: float,
    limits: tuple[float, float | None],
) -> list[Note]:
    """Draw a panel for each curve, with all others behind it in grey."""
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.xaxis.labelpad = 20  # below the numbers of the panels
    lines = math.ceil(len(found) / COLUMNS)
    tall = PANEL * lines - _GAP
    wide = (_WIDTH - (COLUMNS - 1) * _GAP) / COLUMNS
    notes, first = [], None
    for i, curve in enumerate(found):
        line, column = divmod(i, COLUMNS)
        corner = (column * (wide + _GAP) / _WIDTH, 1 - (line * PANEL + PANEL - _GAP) / tall)
        size = (wide / _WIDTH, (PANEL - _GAP - _HEAD) / tall)
        panel = ax.inset_axes([*corner, *size], sharex=first, sharey=first)
        first = first or panel
        for other in found:
            if other is not curve:
                behind = np.reshape(_cut(other.points, limits[0]), (-1, 2)).T
                panel.plot(*behind, color=theme.REST, linewidth=0.9)
        _line(panel, curve, limits[0], label=False)
        _limit(panel, limits)
        panel.locator_params(axis="x", nbins=4)
        panel.locator_params(axis="y", nbins=3)
        panel.tick_params(
            labelbottom=i + COLUMNS >= len(found), labelleft=column == 0, labelsize=9.5
        )
        _name(panel, curve, forms, last, outer=column == COLUMNS - 1)
        notes += _notes(panel, curve, forms, limits[0])
    return notes


def _name(panel: Any, curve: Curve, forms: tuple[Form, Form], last: float, *, outer: bool) -> None:
    """Write above a panel what it shows, and where the curve ends.

    In the outer column what is wider than the panel ends with it, and not beyond the page.
    """
    place, value = curve.points[-1]
    for x, words, colour in (
        (1.22, beside_axis(curve.label, 22), theme.INK),
        (1.04, f"{forms[1](value)} after {forms[0](place)}", theme.MUTED),
    ):
        inwards = outer and max(map(len, words.splitlines())) > _WIDE
        panel.text(
            1 if inwards else 0, x, words, ha="right" if inwards else "left", va="bottom",
            transform=panel.transAxes, color=colour, linespacing=1.05,
            fontsize=10.5 if colour == theme.INK else 9.5,
        )  # fmt: skip
    if place > last:
        panel.text(0.98, 0.06, "cut off", transform=panel.transAxes, ha="right", va="bottom",
                   color=theme.MUTED, fontsize=9.5)  # fmt: skip
