"""Training time against the number of examples: how a run scales when the input grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from manyhands.report import theme
from manyhands.report.chart import Note
from manyhands.report.plots import ranged_text
from manyhands.report.tables import AMOUNT, Row, Summary
from manyhands.report.wording import count, option, percent, plural, seconds, times

CLOSE = 0.05  # of proportion: the same, as far as one can tell
WIDE = 1.2  # the least ratio of examples that makes a curve


def series(summary: Summary) -> dict[str, list[Row]]:
    """Return the rows that differ in the amount of work alone, by what they have in common."""
    found: dict[str, list[Row]] = {}
    several = len({row.group.source for row in summary.rows}) > 1
    for row in summary.rows:
        if row.seconds and row.examples and row.scaling == "strong":
            found.setdefault(_name(row, several), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row.examples or 0)
    return {name: rows for name, rows in found.items() if _examples(rows)[-1] > _least(rows)}


def _least(rows: Sequence[Row]) -> float:
    return WIDE * _examples(rows)[0]


def _examples(rows: Sequence[Row]) -> list[float]:
    return [row.examples or 0 for row in rows]


def _times(rows: Sequence[Row]) -> list[float]:
    return [row.seconds.median for row in rows if row.seconds]


def _name(row: Row, several: bool) -> str:
    """Name a row without what makes it another amount of work."""
    rest = {k: v for k, v in row.group.options.items() if k not in AMOUNT}
    source, strategy = row.group.source, row.group.strategy
    parts = [source, strategy] if several else [strategy]
    parts += [option(name, value) for name, value in rest.items() if value]
    if strategy != "sequential":
        parts.append(plural(row.workers, "worker"))
    return " · ".join(parts)


def fixed(rows: Sequence[Row]) -> float | None:
    """Return the seconds that do not grow with the examples, by least squares; of three or more."""
    if len({*_examples(rows)}) < 3:
        return None
    return float(np.polyfit(_examples(rows), _times(rows), 1)[1])


def draw(ax: Any, summary: Summary) -> list[Note]:
    """Draw the time of each configuration against its examples, and strict proportion beside."""
    notes: list[Note] = []
    most = 0.0
    for i, (name, rows) in enumerate(series(summary).items()):
        look = theme.style(i)
        x, y = _examples(rows), _times(rows)
        ax.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.line, label=name)
        ax.plot([0, x[-1]], [0, y[-1]], color=look.colour, linewidth=0.9, linestyle=(0, (1, 2)))
        notes += [
            Note(name, f"{count(n)} examples", ranged_text(row.seconds, seconds), (n, t))
            for n, t, row in zip(x, y, rows, strict=True)
            if row.seconds
        ]
        most = max(most, *x)
    ax.plot([], [], color=theme.MUTED, linewidth=0.9, linestyle=(0, (1, 2)), label="in proportion")
    ax.set_xlim(0, 1.05 * most)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(lambda v, _: f"{v / 1000:g} k" if v else "0")
    return notes


def comment(summary: Summary) -> list[str]:
    """Say how the time grows with the examples, and what the speed-up does meanwhile."""
    return [_sentence(name, rows) for name, rows in series(summary).items()]


def _sentence(name: str, rows: Sequence[Row]) -> str:
    x, y = _examples(rows), _times(rows)
    more, longer = x[-1] / x[0], y[-1] / y[0]
    off = longer / more - 1
    verdict = "in proportion"
    if abs(off) > CLOSE:
        verdict = f"{percent(abs(off))} {'more' if off > 0 else 'less'} than in proportion"
    still = fixed(rows)
    if still is not None and off < -CLOSE and still > 0:
        verdict += f", about {seconds(still)} do not grow"
    first, last = rows[0].speedup, rows[-1].speedup
    gain = ""
    if first and last and rows[0].workers > 1:
        gain = f"; the speed-up goes from {times(first)} to {times(last)}"
    return (
        f"{name}: {times(more)} the examples take {times(longer)} the time ({verdict}), "
        f"{1e6 * y[-1] / x[-1]:.3g} µs an example at the end{gain}."
    )
