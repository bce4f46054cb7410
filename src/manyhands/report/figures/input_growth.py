"""Training time against the number of examples: how a run scales when the input grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.rounds import ratio
from manyhands.report.analysis.spread import Spread
from manyhands.report.analysis.summary import AMOUNT, Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.figures.plots import ranged_text
from manyhands.report.wording.formatting import count, option, percent, plural, seconds, times
from manyhands.report.wording.sentences import Name, Sentence, fact, say

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


def comment(summary: Summary) -> list[Sentence]:
    """Say how the time grows with the examples, and what the speed-up does meanwhile."""
    found = sorted(series(summary).items(), key=lambda pair: -abs(_beyond(pair[1])))
    return [_sentence(name, rows) for name, rows in found]


def _beyond(rows: Sequence[Row]) -> float:
    """Return by which part the time grows more than the examples."""
    x = _examples(rows)
    return _longer(rows).median / (x[-1] / x[0]) - 1


def _longer(rows: Sequence[Row]) -> Spread:
    """Return how many times the time of the fewest examples the most of them take."""
    found = ratio("seconds", rows[-1].runs, rows[0].runs)
    assert found is not None
    return found


def _sentence(name: str, rows: Sequence[Row]) -> Sentence:
    first, last = rows[0], rows[-1]
    x, y = _examples(rows), _times(rows)
    more = x[-1] / x[0]
    grown = fact("examples", more, how="multiple", runs=last.runs, against=first.runs,
                 text=times(more))  # fmt: skip
    longer = facts.ranged("seconds", _longer(rows), last.runs, first.runs, times, how="multiple")
    each = y[-1] / x[-1]
    spent = fact(
        "seconds per example", each, how="derived", runs=last.runs, text=f"{1e6 * each:.3g} µs"
    )
    return say(
        "{name}: {more} the examples take {longer} the time ({verdict}), {spent} an example at the "
        "end{gain}.",
        name=Name(name), more=grown, longer=longer,
        verdict=_verdict(rows, _beyond(rows)), spent=spent, gain=_gain(first, last),
    )  # fmt: skip


def _verdict(rows: Sequence[Row], off: float) -> Sentence:
    """Say whether the time grows in proportion to the examples."""
    if abs(off) <= CLOSE:
        return say("in proportion")
    part = fact(
        "seconds beyond proportion to examples", off, how="derived", runs=rows[-1].runs,
        against=rows[0].runs, text=percent(abs(off)),
    )  # fmt: skip
    verdict = say("{part} {side} than in proportion", part=part, side="more" if off > 0 else "less")
    still = fixed(rows)
    if still is None or off >= -CLOSE or still <= 0:
        return verdict
    constant = fact(
        "seconds without examples", still, how="fit", text=seconds(still),
        runs=[run for row in rows for run in row.runs], among=[row.runs for row in rows],
    )  # fmt: skip
    return say("{verdict}, about {constant} do not grow", verdict=verdict, constant=constant)


def _gain(first: Row, last: Row) -> Sentence:
    """Say how the speed-up changes, where both are against a sequential run."""
    shown = first.shown_speedup and last.shown_speedup
    if first.workers < 2 or not shown or first.by_own or last.by_own:
        return say("")
    early, late = first.shown_range, last.shown_range
    if not early or not late:
        return say("")
    several = min(early.count, late.count) > 1
    if several and early.low <= late.high and late.low <= early.high:
        return say("; the repeats tell no change of the speed-up")
    return say(
        "; the speed-up goes from {one} to {other}", one=facts.speedup(first),
        other=facts.speedup(last),
    )  # fmt: skip
