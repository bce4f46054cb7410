"""Staleness, how many updates late gradients are: the figure and its comment."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configurations import name, recorded
from manyhands.report.analysis.run_facts import median, stated
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.records.fields import mapping, number
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import count, percent
from manyhands.report.wording.sentences import Sentence, fact, say

DRAWN = 0.99  # of a configuration's updates, at least, where some are much later than the rest


def histogram(run: Run) -> Mapping[int, float]:
    """Return how many updates were that many updates late."""
    counts = mapping(mapping(run.facts.get("staleness")).get("histogram"))
    return {int(k): n for k in counts if k.isdigit() and (n := number(counts, k)) is not None}


def shown(summary: Summary) -> list[tuple[Row, Mapping[int, float]]]:
    """Return the configurations that recorded staleness, with the updates of all repeats."""

    def added(row: Row) -> Mapping[int, float]:
        found = [histogram(run) for run in row.runs]
        late = sorted({k for each in found for k in each})
        return {k: sum(each.get(k, 0) for each in found) for k in late}

    return recorded(summary, added)


def _latest(summary: Summary) -> tuple[int, bool]:
    """Return how late the updates are that are drawn, and whether that leaves some out."""
    ends, longest = [], 0
    for _, counts in shown(summary):
        parts = accumulate(counts.values())
        whole = sum(counts.values())
        ends.append(next((k for k, n in zip(counts, parts, strict=True) if n >= DRAWN * whole), 0))
        longest = max(longest, *counts)
    return (max(ends), True) if longest > 3 * max(ends) + 1 else (longest, False)


def draw(ax: Any, summary: Summary) -> list[Note]:
    """Draw which part of the updates was how late."""
    notes = []
    latest, _ = _latest(summary)
    for i, (row, counts) in enumerate(shown(summary)):
        look = theme.style(i)
        whole = sum(counts.values()) or 1
        late = [k for k in counts if k <= latest]
        share = [counts[k] / whole for k in late]
        label = name(summary, row)
        ax.plot(late, share, color=look.colour, marker=look.marker, label=label, markersize=5)
        notes += [
            Note(label, f"{k} updates late", f"{percent(s, 1)} ({count(counts[k])})", (k, s))
            for k, s in zip(late, share, strict=True)
        ]
    ax.yaxis.set_major_formatter(lambda value, _: percent(value))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_ylim(bottom=0)
    return notes


def comment(summary: Summary) -> list[Sentence]:
    """Say which updates are latest, over all repeats."""
    known = [(late, row) for row, _ in shown(summary)
             if (late := median("mean staleness", row.runs)) is not None]  # fmt: skip
    states = []
    if known:
        row = max(known, key=lambda pair: pair[0])[1]
        held = [k for run in row.runs for k, updates in histogram(run).items() if updates]
        states.append(
            say(
                "The updates of {who} are latest here: by {mean} on average, {most} at most.",
                who=facts.who(summary, row),
                mean=stated("mean staleness", row.runs, lambda v: f"{v:.2f}"),
                most=fact("largest staleness", max(held), how="derived", runs=row.runs,
                          text=str(max(held))),
            )
        )  # fmt: skip
        if _latest(summary)[1]:
            part = facts.threshold("part of the updates that is drawn", DRAWN, percent(DRAWN))
            states.append(
                say("The figure shows at least {part} of the updates of each.", part=part)
            )
    return states
