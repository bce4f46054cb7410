"""Speed-up and efficiency: the figure, and the comments on both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.significance import slower
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import bottlenecks, theme
from manyhands.report.figures.chart import Note
from manyhands.report.figures.plots import along, core_lines, styles
from manyhands.report.wording.formatting import some
from manyhands.report.wording.sentences import Name, Sentence, capitalised, listed, say


def draw(ax: Any, summary: Summary) -> list[Note]:
    """Draw speed-ups, the ideal line, laws fitted to several points and the number of cores."""
    widest = max(row.x for row in summary.rows)
    grid = np.linspace(1, widest, 60)
    notes = along(ax, summary, lambda row: row.shown_range, lambda v: f"{v:.2f}×")
    ax.plot(grid, grid, color=theme.MUTED, linewidth=1, linestyle=(0, (6, 3)), label="ideal")
    looks = styles(summary)
    fits = {group: fit for group, fit in summary.fits.items() if fit.points > 1}
    for group, fit in fits.items():
        ax.plot(
            grid, [fit.at(p) for p in grid], color=looks[group].colour, linewidth=1.1,
            linestyle=(0, (1, 2)), zorder=2,
        )  # fmt: skip
    if fits:
        law = " or ".join(sorted({fit.law for fit in fits.values()}))
        ax.plot(
            [], [], color=theme.MUTED, linewidth=1.1, linestyle=(0, (1, 2)), label=f"{law}, fitted"
        )
    core_lines(ax, summary)
    peak = max((found.high for row in summary.rows if (found := row.shown_range)), default=1)
    ax.set_ylim(0, max(min(widest, 1.6 * peak), 1.15 * peak))
    return notes


def unit(summary: Summary) -> str:
    """Name the axis of the speed-up."""
    shown = [row for row in summary.rows if row.shown_speedup is not None]
    base = "one worker" if any(row.by_own for row in shown) else "the sequential run"
    return f"times as fast as {base}"


def comment(summary: Summary) -> list[Sentence]:
    """Comment on the speed-ups: where they peak and why."""
    return some(*_peaks(summary), bottlenecks.threads(summary))


def comment_places(summary: Summary) -> list[Sentence]:
    """Say what single places, of which none peaks, are against."""
    return some(baseline(summary), bottlenecks.threads(summary))


def baseline(summary: Summary) -> Sentence:
    """Say what speed-up is measured against."""
    kinds = {False: "training time", True: "examples per second"}
    what = listed([kinds[k] for k in sorted({row.by_rate for row in summary.rows})])
    shown = [row for row in summary.rows if row.shown_speedup is not None]
    own = [row for row in shown if row.by_own]
    if shown and not own:
        return say("Speed-up is against the sequential run of the same task, in {w}.", w=what)
    if own and len(own) == len(shown) and all(row.speedup is None for row in own):
        return say(
            "There is no sequential run of the same task: speed-up is against the same strategy "
            "with one worker, in {what}.",
            what=what,
        )
    if own:
        names = listed(list(dict.fromkeys(facts.label(row) for row in own)))
        rest = "" if len(own) == len(shown) else " For the others it is against the sequential run."
        return say(
            "Speed-up, in {what}, is against the strategy's own run with one worker for {names}: "
            "{why}.{rest}",
            names=names, what=what, rest=rest, why=_apart(summary, own),
        )  # fmt: skip
    return say("")


def _apart(summary: Summary, own: Sequence[Row]) -> str:
    """Say why configurations of a curve are not compared with a sequential run."""
    batches = {row.group: set[float | None]() for row in own}
    for row in own:
        batches[row.group].add(row.runs[0].update)
    if all(len(held) > 1 for held in batches.values()):
        return "the batch grows with the workers, so no one sequential run fits all"
    return "their configurations share no sequential run of the same task"


def _peaks(summary: Summary) -> list[Sentence]:
    """Say where speed-ups peak and why; groups with the same answer share a sentence."""
    found: dict[tuple[int, str], list[tuple[Sentence, Row, Sentence]]] = {}
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.shown_speedup is not None]
        if len(rows) < 2:
            continue
        top = max(rows, key=lambda row: row.shown_speedup or 0)
        peak = say("{label} at {pace}", label=Name(group.label), pace=facts.speedup(top))
        mine = summary.of(group)
        later = [r for r in rows[rows.index(top) + 1 :] if slower(r, top, mine)]
        if not later:
            continue
        reason = bottlenecks.why_not_more(top, later[0])
        found.setdefault((top.workers, str(reason)), []).append((peak, top, reason))
    return [_peak(held) for held in found.values()]


def _peak(held: Sequence[tuple[Sentence, Row, Sentence]]) -> Sentence:
    """Say where some groups peak; the reason is the first one's, and reads alike for all."""
    _, row, reason = held[0]
    why = say(" {reason}.", reason=capitalised(reason)) if reason else say("")
    return say(
        "The speed-up peaks with {workers}: {peaks}.{why}", workers=facts.workers(row),
        peaks=listed([peak for peak, _, _ in held], "; ", "; "), why=why,
    )  # fmt: skip


def comment_efficiency(summary: Summary) -> list[Sentence]:
    """Say that masters count where there are any."""
    masters = any(not p.trains for row in summary.rows for run in row.runs for p in run.team)
    return some(
        say("Efficiency is speed-up per process; masters count as well." if masters else "")
    )
