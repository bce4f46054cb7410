"""The figures of private runs: accuracy against ε, and ε over the steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from manyhands.config.privacy import Privacy
from manyhands.errors import ConfigError
from manyhands.privacy import accountant
from manyhands.privacy.accountant import write_bound
from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configurations import name, place, typical_run
from manyhands.report.analysis.privacy_cost import cost, event, sound
from manyhands.report.analysis.spread import Spread
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Chart, Note
from manyhands.report.figures.plots import label_ticks
from manyhands.report.records.fields import number
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import count, option, percent, plural
from manyhands.report.wording.sentences import Fact, Name, Sentence, capitalised, fact, listed, say

MOST = 6  # curves in a figure
# Two private runs that differ in other options than these are two series.
_NOISE = ("private", "epsilon", "noise_multiplier", "workers")
# What a run without privacy may have otherwise.
_BESIDE = ("private", "workers", "kernels", *(f.name for f in fields(Privacy)))


class Line(NamedTuple):
    """What one run, made or planned, spends over its steps.

    Attributes:
        label: Its name.
        event: Its steps, its sampling rate and its noise.
        delta: Its δ.
        epsilon: The ε that it states, or None where the accountant is to be asked.
        runs: The run; none where it is only planned.
    """

    label: str
    event: accountant.Event
    delta: float
    epsilon: float | None = None
    runs: tuple[Run, ...] = ()


class _Curve(NamedTuple):
    line: Line
    spent: list[tuple[int, float]]  # steps, epsilon


def charts(summary: Summary) -> Iterator[Chart]:
    """Return the figures of private runs."""
    series = _series(summary)
    if series:
        yield Chart(
            id="privacy-accuracy", title="Accuracy against ε", x_label="ε (less is more private)",
            y_label="test accuracy", draw=lambda ax: _draw_accuracy(ax, summary),
            comment=tuple(_comment_accuracy(summary)),
            alt="test accuracy of private runs against their epsilon", left=58,
        )  # fmt: skip
    lines = _lines(summary)
    if lines:
        try:
            yield cost_chart(lines)
        except ConfigError:
            return


def _lines(summary: Summary) -> list[Line]:
    """Return what the runs spend; of several that spend alike, the first."""
    found: dict[tuple[accountant.Event, float], Line] = {}
    for row in summary.rows:
        run = typical_run(row)
        spends, delta = event(run), number(run.privacy, "delta")
        if not (sound(run) and spends and delta and 0 < delta < 1):
            continue
        if (spends, delta) not in found:
            found[spends, delta] = Line(name(summary, row), spends, delta, cost(run), (run,))
    return list(found.values())[:MOST]


def cost_chart(lines: Iterable[Line]) -> Chart:
    """Return the figure of what has been spent after so many steps.

    Raises:
        ConfigError: If the accountant's library is not installed.
    """
    curves = [_Curve(line, spent) for line in lines if (spent := _spent(line))]
    deltas = {curve.line.delta for curve in curves}

    def draw(ax: Any) -> list[Note]:
        notes = []
        for index, (line, spent) in enumerate(curves):
            look = theme.style(index)
            ax.plot(
                *zip(*spent, strict=True), color=look.colour, linestyle=look.line, label=line.label
            )
            notes += [
                Note(
                    line.label, f"{count(step)} steps", f"ε = {write_bound(cost, 3)}", (step, cost)
                )
                for step, cost in spent
            ]
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_formatter(lambda v, _: count(v))
        return notes

    return Chart(
        id="privacy-steps", title="ε over steps", x_label="steps", draw=draw,
        y_label=f"ε at δ = {deltas.pop():g}" if len(deltas) == 1 else "ε at each run's δ",
        comment=tuple(_comment_cost(curves)),
        alt="epsilon spent after so many steps, by privacy loss distributions",
    )  # fmt: skip


def _spent(line: Line) -> list[tuple[int, float]]:
    """Return (steps, ε); at the end the ε that is stated, which bounds all before it."""
    points = accountant.curve(line.event, line.delta)
    if not points:
        return []
    whole = line.epsilon
    if whole is None:
        whole = accountant.epsilon(line.event, line.delta)
    return [*((steps, min(cost, whole)) for steps, cost in points[:-1]), (points[-1][0], whole)]


def _comment_cost(curves: list[_Curve]) -> Iterator[Sentence]:
    for line, spent in curves:
        steps, whole = spent[-1]
        half = min(spent, key=lambda point: abs(point[0] - steps / 2))

        def stated(what: str, value: float, shown: str, line: Line = line, **more: float) -> Fact:
            return fact(
                what, value, how="derived", runs=line.runs, text=shown,
                parameters={**line.event.__dict__, "delta": line.delta, **more},
            )  # fmt: skip

        part = half[1] / whole
        yield capitalised(
            say(
                "{label}: {steps} steps cost ε = {whole}; the first {half} cost {part} of that.",
                label=Name(line.label), steps=stated("private steps", steps, count(steps)),
                whole=stated("epsilon", whole, write_bound(whole, 2)),
                half=stated("some of the private steps", half[0], count(half[0])),
                part=stated("part of epsilon", part, percent(part), first=half[0]),
            )
        )  # fmt: skip


class _Series(NamedTuple):
    """Runs that differ in their noise alone, with two values of it at least.

    Where ε differs because of the data, the batch or the steps, accuracy differs because of them.
    """

    label: str
    private: list[tuple[float, Row]]  # by epsilon
    plain: Row | None  # the same without privacy


def _series(summary: Summary) -> list[_Series]:
    plain = {
        _label(summary, row, _BESIDE): row
        for row in summary.rows
        if row.accuracy and not typical_run(row).privacy
    }
    found: dict[str, _Series] = {}
    for row in summary.rows:
        spent = cost(typical_run(row))
        if row.accuracy is None or spent is None:
            continue
        label = _label(summary, row, _NOISE)
        beside = plain.get(_label(summary, row, _BESIDE))
        found.setdefault(label, _Series(label, [], beside)).private.append((spent, row))
    for series in found.values():
        series.private.sort(key=lambda pair: pair[0])
    return [series for series in found.values() if len({e for e, _ in series.private}) > 1]


def _label(summary: Summary, row: Row, without: tuple[str, ...]) -> str:
    """Name a configuration without some options; its place on the axis counts as one of them."""
    kept = {k: v for k, v in row.group.options.items() if k not in without and v is not None}
    parts = [row.group.strategy, *(option(key, value) for key, value in kept.items())]
    if summary.layout.x not in (*without, "workers"):
        parts.append(place(summary, row))
    alone = row.group.strategy == "sequential"
    return " · ".join([*parts, *([] if alone else [plural(row.workers, "worker")])])


def _spread(row: Row) -> Spread:
    assert row.accuracy is not None
    return row.accuracy


def _draw_accuracy(ax: Any, summary: Summary) -> list[Note]:
    notes: list[Note] = []
    for index, (label, private, plain) in enumerate(_series(summary)):
        look = theme.style(index)
        x, found = [spent for spent, _ in private], [_spread(row) for _, row in private]
        y = [each.median for each in found]
        ax.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.line, label=label)
        ax.vlines(x, [f.low for f in found], [f.high for f in found], color=look.colour)
        notes += [
            Note(label, _at(spent), percent(height, 2), (spent, height))
            for spent, height in zip(x, y, strict=True)
        ]
        if plain:
            dashed = {"color": look.colour, "linewidth": 1.2, "linestyle": (0, (4, 3))}
            ax.axhline(_spread(plain).median, **dashed)
            ax.plot([], [], label=f"{label}, not private", **dashed)
    ax.set_xlim(left=0)
    label_ticks(ax.yaxis, lambda v: percent(v, 2))
    return notes


def _comment_accuracy(summary: Summary) -> Iterator[Sentence]:
    for label, private, plain in _series(summary):
        ends = [private[0], private[-1]]
        shown = [
            say("{a} at ε = {e}", a=facts.accuracy(row), e=_stated(spent, row))
            for spent, row in ends
        ]
        beside = _beside(private[-1][1], plain) if plain else say("")
        yield capitalised(
            say("{l}: {shown}{beside}.", l=Name(label), shown=listed(shown), beside=beside)
        )


def _at(epsilon: float) -> str:
    return f"ε = {write_bound(epsilon, 3)}"


def _stated(spent: float, row: Row) -> Fact:
    shown = write_bound(spent, 2)
    return fact("epsilon", spent, how="derived", runs=[typical_run(row)], text=shown)


def _beside(row: Row, plain: Row) -> Sentence:
    """Compare a private configuration with the same without privacy."""
    side = "below" if _spread(plain).median >= _spread(row).median else "above"
    return say(", {gap} {side} the run without privacy", gap=facts.gap(row, plain), side=side)
