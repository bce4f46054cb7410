"""Where the time goes: one bar per process, computing, updating, communicating and waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manyhands.report import theme
from manyhands.report.chart import Note
from manyhands.report.load import Run
from manyhands.report.plots import middle, name
from manyhands.report.tables import Row, Summary
from manyhands.report.wording import percent, seconds, short

GAP = 1.6  # between configurations, in bars


def shown(summary: Summary) -> tuple[Row, ...]:
    """Choose the configurations to show: all, or if those are too many the widest of each group."""
    rows = [row for row in summary.rows if _known(middle(row))]
    if sum(row.processes for row in rows) <= 70:
        return tuple(rows)
    widest = {row.group: row for row in sorted(rows, key=lambda row: row.x)}
    return tuple(row for row in rows if widest[row.group] is row)


def parts(run: Run, index: int) -> dict[str, float]:
    """Return the seconds of each phase of one process; what is left of the training is "other"."""
    process = run.team[index]
    known = {p: getattr(process, p) or 0.0 for p in theme.PHASES if p != "other"}
    known["other"] = max((run.seconds or 0) - sum(known.values()), 0.0)
    return known


def tall(rows: Sequence[Row]) -> int:
    """Return how tall the plot must be, in points."""
    bars = sum(len(middle(row).team) for row in rows)
    return int(min(11 * (bars + GAP * len(rows)), 900))


def draw(ax: Any, summary: Summary) -> list[Note]:
    """Draw the bars of the middle repeat of every configuration."""
    notes: list[Note] = []
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for row in shown(summary):
        run = middle(row)
        ticks.append((y + (len(run.team) - 1) / 2, short(name(summary, row))))
        for index, process in enumerate(run.team):
            left = 0.0
            who = f"{name(summary, row)}, {process.role or 'worker'} {process.rank}"
            for phase, amount in parts(run, index).items():
                words, colour = theme.PHASES[phase]
                ax.barh(y, amount, left=left, height=0.84, color=colour, linewidth=0)
                if amount > 0.004 * (run.seconds or 1):
                    share = percent(amount / run.seconds) if run.seconds else ""
                    value = f"{seconds(amount)} ({share})"
                    notes.append(Note(who, words, value, (left, y + 0.42), (amount, -0.84)))
                left += amount
            y += 1
        y += GAP
    seen = {note.x for note in notes}
    for words, colour in theme.PHASES.values():
        if words in seen:
            ax.barh(0, 0, color=colour, label=words)
    ax.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    ax.set_ylim(y - GAP, -1)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    return notes


def _known(run: Run) -> bool:
    return any(getattr(p, phase) for p in run.team for phase in ("compute", "communicate", "wait"))
