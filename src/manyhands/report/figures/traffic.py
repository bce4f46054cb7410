"""Traffic of one exchange: measured values on the lines that theory gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.report.analysis.configurations import place
from manyhands.report.analysis.exchanges import EACH, Exchange, exchanges
from manyhands.report.analysis.summary import Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.figures.plots import styles, ticks
from manyhands.report.wording.formatting import size
from manyhands.report.wording.sentences import Sentence, say


def title(summary: Summary) -> str:
    """Return the figure's title; theory is drawn along the workers alone."""
    theory = summary.layout.x == "workers" and any(e.expected for e in exchanges(summary))
    return "Traffic, measured and in theory" if theory else "Traffic of one exchange"


def draw(ax: Any, summary: Summary) -> list[Note]:
    """Draw measured bytes as markers on the lines that theory gives."""
    found = exchanges(summary)
    looks = styles(summary)
    notes = []
    for group in dict.fromkeys(e.row.group for e in found):
        mine = [e for e in found if e.row.group is group]
        look = looks[group]
        ax.plot(
            [e.row.x for e in mine], [e.measured for e in mine], color=look.colour, zorder=3,
            marker=look.marker, linestyle="none", label=f"{group.label}, measured",
        )  # fmt: skip
        notes += [_note(summary, e) for e in mine]
    if summary.layout.x == "workers":
        _theory(ax, found)
        ticks(ax, sorted({1.0, *(row.x for row in summary.rows)}))
    else:
        ticks(ax, sorted({e.row.x for e in found}))
    ax.margins(x=0.06)
    ax.set_ylim(0, 1.08 * max(e.measured for e in found))
    ax.yaxis.set_major_formatter(lambda value, _: size(value))
    return notes


def _note(summary: Summary, e: Exchange) -> Note:
    theory = f", {size(e.expected)} in theory" if e.expected else ""
    return Note(
        e.row.label, place(summary, e.row), f"{size(e.measured)}{theory}", (e.row.x, e.measured)
    )


def _theory(ax: Any, found: tuple[Exchange, ...]) -> None:
    """Draw one dashed line for every algorithm whose traffic theory gives for any P."""
    known = [e for e in found if e.expected is not None and e.algorithm in EACH]
    curves = {(e.algorithm, e.vector) for e in known}
    kinds = [algorithm for algorithm, _ in curves]
    widest = max((e.row.workers for e in found), default=2)
    for i, (algorithm, vector) in enumerate(sorted(curves, key=str)):
        grid = np.linspace(1, widest, 50)
        of = f" of {size(vector)}" if vector and kinds.count(algorithm) > 1 else ""
        ax.plot(
            grid, [EACH[algorithm](p) * (vector or 0) for p in grid], color=theme.MUTED,
            linewidth=1, linestyle=theme.LINES[1 + i % 3], label=f"{algorithm}{of}, in theory",
        )  # fmt: skip


def comment(summary: Summary) -> list[Sentence]:
    """Comment on the traffic: measured against theory."""
    known = [e for e in exchanges(summary) if e.expected]
    if not known:
        return []
    worst = max(known, key=lambda e: e.off)
    if worst.off < 0.005:
        return [say("The measured traffic is that of theory.")]
    return [say("Measured traffic differs from theory by up to {off}.", off=worst.off_fact())]
