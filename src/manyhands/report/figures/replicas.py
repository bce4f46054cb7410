"""The replicas of a model: each worker's accuracy alone, and how far apart they are."""

from __future__ import annotations

from statistics import median
from typing import Any

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configuration_facts import over_repeats, who
from manyhands.report.analysis.configurations import name, recorded
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.figures.plots import label_ticks
from manyhands.report.records.fields import finite, sequence
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import beside_axis, percent
from manyhands.report.wording.sentences import Fact, Sentence, say


def own(run: Run) -> list[float]:
    """Return each worker's accuracy by itself, before the average."""
    return [a for v in sequence(run.facts.get("own_accuracy")) if (a := finite(v)) is not None]


def distances(run: Run) -> list[tuple[float, float]]:
    """Return (step, distance) pairs."""
    pairs = sequence(run.facts.get("consensus_distance"))
    return [
        (step, far)
        for pair in pairs
        if len(sequence(pair)) == 2
        and (step := finite(pair[0])) is not None
        and (far := finite(pair[1])) is not None
    ]


def with_own(summary: Summary) -> list[tuple[Row, list[Run]]]:
    """Return the configurations whose workers were also judged one by one, and those repeats."""
    return recorded(summary, lambda row: [r for r in row.runs if own(r) and r.accuracy is not None])


def with_distance(summary: Summary) -> list[tuple[Row, list[tuple[float, float]]]]:
    """Return the distances between the replicas: medians at the steps that all repeats measured."""

    def medians(row: Row) -> list[tuple[float, float]]:
        found = [dict(pairs) for run in row.runs if (pairs := distances(run))]
        steps = set.intersection(*(set(each) for each in found)) if found else set()
        return [(step, median(each[step] for each in found)) for step in sorted(steps)]

    return recorded(summary, medians)


def draw_own(ax: Any, summary: Summary) -> list[Note]:
    """Draw each worker's accuracy beside the accuracy of the average, in every repeat."""
    notes: list[Note] = []
    held = with_own(summary)
    for i, (row, runs) in enumerate(held):
        label = name(summary, row)
        for run in runs:
            each, together = own(run), run.accuracy or 0.0
            ax.plot(
                each, [i] * len(each), marker="o", linestyle="none", markerfacecolor="none",
                color=theme.SERIES[0], label="a worker alone" if not notes else None,
            )  # fmt: skip
            ax.plot(
                [together], [i], marker="D", linestyle="none", color=theme.SERIES[1],
                label="their average" if not notes else None,
            )  # fmt: skip
            notes += [
                Note(label, f"worker {k} alone", percent(a, 2), (a, i)) for k, a in enumerate(each)
            ]
            notes.append(Note(label, "the average", percent(together, 2), (together, i)))
    ax.set_yticks(range(len(held)), [beside_axis(name(summary, row)) for row, _ in held])
    ax.set_ylim(len(held) - 0.4, -0.6)
    label_ticks(ax.xaxis, lambda value: percent(value, 2))
    ax.locator_params(axis="x", nbins=5)
    return notes


def draw_distance(ax: Any, summary: Summary) -> list[Note]:
    """Draw how far the replicas are from their mean, over the steps."""
    notes = []
    for i, (row, pairs) in enumerate(with_distance(summary)):
        look = theme.style(i)
        label = name(summary, row)
        ax.plot(*zip(*pairs, strict=True), color=look.colour, linestyle=look.line, label=label)
        thinned = pairs[:: max(1, len(pairs) // 40)]
        notes += [Note(label, f"step {s:g}", f"{d:.3g}", (s, d)) for s, d in thinned]
    if notes and all(note.at[1] > 0 for note in notes):
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(lambda value, _: "")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    return notes


def comment_own(summary: Summary) -> list[Sentence]:
    """Say where the average is worse, and better, than the best worker in every repeat."""
    held = [(row, [run.accuracy or 0.0 for run in runs], runs) for row, runs in with_own(summary)]
    gaps = [(row, [a - max(own(r)) for a, r in zip(each, runs, strict=True)], runs)
            for row, each, runs in held]  # fmt: skip
    below = [(max(gap), row, runs) for row, gap, runs in gaps if max(gap) < 0]
    above = [(min(gap), row, runs) for row, gap, runs in gaps if min(gap) > 0]
    ends = [(min(below, key=lambda one: one[0]), "below")] if below else []
    ends += [(max(above, key=lambda one: one[0]), "above")] if above else []
    return [
        say(
            "{who}: the average ({together}) is {verdict} the best worker alone ({alone}){often}.",
            who=who(summary, row), verdict=verdict,
            together=over_repeats(runs, "accuracy", lambda run: run.accuracy, _percent),
            alone=over_repeats(runs, "best own accuracy", lambda run: max(own(run)), _percent),
            often=say(" in each of {repeats}", repeats=facts.repeats(runs)) if len(runs) > 1
            else say(", in a single run"),
        )
        for (_, row, runs), verdict in ends
    ]  # fmt: skip


def _percent(value: float) -> str:
    return percent(value, 2)


def comment_distance(summary: Summary) -> list[Sentence]:
    """Say which replicas end furthest apart, and how they came there."""
    row, pairs = max(with_distance(summary), key=lambda pair: pair[1][-1][1])
    if pairs[-1][1] <= 0:
        return []
    first, last = (_distance(row, pairs[at][0], at) for at in (0, -1))
    before = say(" (at first {first})", first=first) if len(pairs) > 1 else say("")
    return [
        say(
            "The replicas of {who} end furthest apart: {last} from their mean{before}.",
            who=who(summary, row),
            last=last,
            before=before,
        )
    ]


def _distance(row: Row, step: float, at: int) -> Fact:
    """State the distance at a step that all repeats measured."""
    what = "last distance" if at else "first distance"
    runs = [run for run in row.runs if distances(run)]
    return over_repeats(
        runs, what, lambda r: dict(distances(r))[step], lambda v: f"{v:.3g}", step=step
    )
