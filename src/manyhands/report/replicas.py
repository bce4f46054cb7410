"""The replicas of a model: each worker's accuracy alone, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from manyhands.report import facts, theme
from manyhands.report.chart import Note
from manyhands.report.facts import over_repeats, who
from manyhands.report.formatting import beside_axis, percent
from manyhands.report.plots import label_ticks, name, recorded
from manyhands.report.runs import Run
from manyhands.report.sentences import Fact, Sentence, say
from manyhands.report.summary import Row, Summary
from manyhands.report.values import finite, sequence


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
    """Comment on the workers alone beside their average; a claim needs all repeats."""
    return [
        say(
            "{who}: the average ({together}) is {verdict} than the best worker alone ({alone}).",
            who=who(summary, row), verdict=_better(runs), together=facts.accuracy(row),
            alone=over_repeats(
                runs, "best own accuracy", lambda r: max(own(r)), lambda v: percent(v, 2)
            ),
        )
        for row, runs in with_own(summary)
    ]  # fmt: skip


def _better(runs: Sequence[Run]) -> Sentence:
    """Say whether the average is better than every worker, or in how many repeats it is."""
    better = [run for run in runs if (run.accuracy or 0) > max(own(run))]
    if len(better) in (0, len(runs)):
        return say("better" if better else "not better")
    some, whole = facts.count(better, ""), facts.repeats(runs)
    return say("in {some} of {whole} better", some=some, whole=whole)


def comment_distance(summary: Summary) -> list[Sentence]:
    """Comment on how far apart the replicas are."""
    states = []
    for row, pairs in with_distance(summary):
        first, last = (_distance(row, pairs[at][0], at) for at in (0, -1))
        course = say("from {first} at the first to {last} at the last measurement", first=first,
                     last=last)  # fmt: skip
        if len(pairs) == 1:
            course = say("{first} at the only measurement", first=first)
        states.append(say("{who}: {course}.", who=who(summary, row), course=course))
    return states


def _distance(row: Row, step: float, at: int) -> Fact:
    """State the distance at a step that all repeats measured."""
    what = "last distance" if at else "first distance"
    runs = [run for run in row.runs if distances(run)]
    return over_repeats(
        runs, what, lambda r: dict(distances(r))[step], lambda v: f"{v:.3g}", step=step
    )
