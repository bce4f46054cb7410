"""Where the time goes: one bar per process, computing, updating, communicating and waiting."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from matplotlib.collections import PolyCollection

from manyhands.report.analysis.configurations import name
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import beside_axis, percent, seconds

GAP = 1.6  # between configurations, in bars
HALF = 0.42  # of a bar's thickness


def shown(summary: Summary) -> tuple[Row, ...]:
    """Choose the configurations to show: all, or if those are too many the widest of each group."""
    rows = [row for row in summary.rows if _known(row.runs[0])]
    if sum(row.processes for row in rows) <= 70:
        return tuple(rows)
    widest = {row.group: row for row in sorted(rows, key=lambda row: row.x)}
    return tuple(row for row in rows if widest[row.group] is row)


def parts(row: Row, index: int) -> dict[str, float]:
    """Return the seconds of each phase of one process, which sum up to its median over the repeats.

    What is left of the training is "other". Each phase has its mean share of the repeats' time.
    """
    team = len(row.runs[0].team)
    held = [_phases(run, index) for run in row.runs if len(run.team) == team]
    wholes = [sum(each.values()) for each in held]
    shares = {
        phase: fmean(each[phase] / whole if whole else 0.0
                     for each, whole in zip(held, wholes, strict=True))
        for phase in theme.PHASES
    }  # fmt: skip
    return {phase: share * median(wholes) for phase, share in shares.items()}


def _phases(run: Run, index: int) -> dict[str, float]:
    """Return the seconds of each phase of one process in one run."""
    process = run.team[index]
    known = {p: getattr(process, p) or 0.0 for p in theme.PHASES if p != "other"}
    known["other"] = max((run.seconds or 0) - sum(known.values()), 0.0)
    return known


def tall(rows: Sequence[Row]) -> int:
    """Return how tall the plot must be, in points."""
    bars = sum(len(row.runs[0].team) for row in rows)
    return int(min(11 * (bars + GAP * len(rows)), 900))


def draw(ax: Any, summary: Summary) -> list[Note]:
    """Draw the bars of every configuration: over all repeats, as long as their median time."""
    notes: list[Note] = []
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for row in shown(summary):
        run = row.runs[0]
        ticks.append((y + (len(run.team) - 1) / 2, beside_axis(name(summary, row))))
        for index, process in enumerate(run.team):
            who = f"{name(summary, row)}, {process.role or 'worker'} {process.rank}"
            notes += _bar(row, index, who, y)
            y += 1
        y += GAP
    for words, colour in theme.PHASES.values():
        corners = [_corners(note) for note in notes if note.x == words]
        if corners:
            ax.add_collection(PolyCollection(corners, facecolor=colour, linewidth=0, label=words))
    ax.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    ax.set_ylim(y - GAP, -1)
    ends = [note.at[0] + note.size[0] for note in notes if note.size]
    ax.set_xlim(0, 1.02 * max(ends, default=1))
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    return notes


def _bar(row: Row, index: int, who: str, y: float) -> list[Note]:
    """Return one process's bar, a note per phase."""
    notes = []
    left = 0.0
    found = parts(row, index)
    whole = sum(found.values())  # more than the training, of a master that waits in evaluations
    for phase, amount in found.items():
        if amount > 0.004 * whole:
            value = f"{seconds(amount)} ({percent(amount / whole)})"
            size = (amount, -2 * HALF)
            notes.append(Note(who, theme.PHASES[phase][0], value, (left, y + HALF), size))
        left += amount
    return notes


def _corners(note: Note) -> list[tuple[float, float]]:
    assert note.size is not None
    (x, y), (width, height) = note.at, note.size
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


def _known(run: Run) -> bool:
    return any(getattr(p, phase) for p in run.team for phase in ("compute", "communicate", "wait"))
