"""The picture of `option_values`: one line per value of the option, one colour per strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manyhands.report.analysis.option_values import Cell, Comparison
from manyhands.report.analysis.run_facts import values
from manyhands.report.figures import option_cost, theme
from manyhands.report.figures.chart import Chart, Note
from manyhands.report.wording.formatting import capital, percent, plural

ID = "categories"
BAND = 0.72  # of the distance between two values: how far the marks of one value spread
WIDE = 10.0  # a change beyond which the axis is logarithmic


def chart(found: Comparison) -> Chart:
    """Return the figure with its comment."""
    unit = "percentage points of accuracy" if found.measure == "accuracy" else found.metric
    return Chart(
        id=ID, title=f"{capital(found.metric)} by {found.spoken}", y_label="",
        x_label=f"{unit}, against {found.reference} (left: worse)",
        draw=lambda ax: draw(ax, found), comment=tuple(option_cost.comment(found)),
        alt=f"what each {found.spoken} costs against {found.reference}, for each strategy",
        height=max(150, len(found.values) * (14 + 7 * len(found.series))),
        left=int(14 + 6.7 * max(len(value) for value in found.values)),
    )  # fmt: skip


def draw(ax: Any, found: Comparison) -> list[Note]:
    """Draw every configuration's change against the reference, with the range of its repeats."""
    notes: list[Note] = []
    strategies, counts = (list(dict.fromkeys(part)) for part in zip(*found.series, strict=True))
    scale = 100.0 if found.measure == "accuracy" else 1.0
    for line, value in enumerate(found.values):
        ax.axhspan(line - 0.5, line + 0.5, color=theme.GRID, alpha=0.35 * (line % 2), linewidth=0)
        for place, series in enumerate(found.series):
            cell = found.at(value, series)
            if cell is not None:
                y = line + BAND * ((place + 0.5) / len(found.series) - 0.5)
                colour = theme.SERIES[strategies.index(series[0]) % len(theme.SERIES)]
                marker = theme.MARKERS[counts.index(series[1]) % len(theme.MARKERS)]
                notes.append(_mark(ax, cell, y, scale, colour, marker))
    ax.axvline(0, color=theme.MUTED, linewidth=1, zorder=1)
    ax.set_yticks(range(len(found.values)), found.values)
    ax.set_ylim(len(found.values) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    _scale_axis(ax, [note.at[0] for note in notes])
    _legend(ax, strategies, counts)
    return notes


def _mark(ax: Any, cell: Cell, y: float, scale: float, colour: str, marker: str) -> Note:
    measure = "accuracy" if cell.row.accuracy else "score"
    own = values(measure, cell.row.runs)
    base = sorted(values(measure, cell.base.runs))[len(cell.base.runs) // 2]
    worse = -1 if cell.row.runs[0].higher is False and measure == "score" else 1
    span = [worse * scale * (value - base) for value in own]
    ax.hlines(y, min(span), max(span), color=colour, linewidth=1.3, zorder=2)
    ax.plot(
        [scale * cell.change], [y], marker=marker, color=colour, markersize=5.5, linestyle="none",
        markerfacecolor=colour if cell.clear else theme.PAPER, markeredgewidth=1.2, zorder=3,
    )  # fmt: skip
    level = cell.row.accuracy or cell.row.score
    assert level is not None
    shown = percent(level.median, 2) if measure == "accuracy" else f"{level.median:.4g}"
    who = f"{cell.strategy} with {plural(cell.row.workers, 'worker')}"
    text = f"{shown}, {scale * cell.change:+.2f} against the reference"
    return Note(who, cell.value, text, (scale * cell.change, y))


def _scale_axis(ax: Any, changes: Sequence[float]) -> None:
    """Make the axis logarithmic beyond one where some changes are large."""
    if max(abs(change) for change in changes) <= WIDE:
        ax.margins(x=0.08)
        return
    ax.set_xscale("symlog", linthresh=1, linscale=0.7)
    low, high = ax.get_xlim()
    ax.set_xlim(min(1.4 * low, -1), max(1.4 * high, 1))
    low, high = ax.get_xlim()
    shown = [t for t in (-100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100) if low <= t <= high]
    ax.set_xticks(shown, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in shown])
    ax.set_xticks([], minor=True)


def _legend(ax: Any, strategies: Sequence[str], counts: Sequence[int]) -> None:
    """Name the colours, the shapes, and what an empty mark means."""
    plain: dict[str, Any] = {"linestyle": "none", "markersize": 6}
    for i, name in enumerate(strategies):
        ax.plot([], [], marker="s", color=theme.SERIES[i % len(theme.SERIES)], label=name, **plain)
    if len(counts) > 1:
        for i, count in enumerate(counts):
            shape = theme.MARKERS[i % len(theme.MARKERS)]
            words = plural(count, "worker")
            ax.plot([], [], marker=shape, color=theme.MUTED, label=words, **plain)
    ax.plot([], [], marker="o", color=theme.MUTED, markerfacecolor=theme.PAPER,
            label="within chance", **plain)  # fmt: skip
