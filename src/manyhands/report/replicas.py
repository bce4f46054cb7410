"""The replicas of a model: each worker's accuracy alone, and how far apart they are."""

from __future__ import annotations

from typing import Any

from manyhands.report import theme
from manyhands.report.chart import Note
from manyhands.report.facts import of_typical_run, who
from manyhands.report.formatting import beside_axis, percent
from manyhands.report.plots import name, recorded, typical_run
from manyhands.report.runs import Run
from manyhands.report.sentences import Sentence, say
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


def with_own(summary: Summary) -> list[tuple[Row, list[float]]]:
    """Return the configurations whose workers were also judged one by one."""
    return recorded(summary, own)


def with_distance(summary: Summary) -> list[tuple[Row, list[tuple[float, float]]]]:
    """Return the configurations that recorded how far the replicas are apart."""
    return recorded(summary, distances)


def draw_own(ax: Any, summary: Summary) -> list[Note]:
    """Draw each worker's accuracy beside the accuracy of the average."""
    notes = []
    held = with_own(summary)
    for i, (row, each) in enumerate(held):
        label = name(summary, row)
        ax.plot(
            each, [i] * len(each), marker="o", linestyle="none", markerfacecolor="none",
            color=theme.SERIES[0], label="a worker alone" if i == 0 else None,
        )  # fmt: skip
        notes += [
            Note(label, f"worker {k} alone", percent(a, 2), (a, i)) for k, a in enumerate(each)
        ]
        together = typical_run(row).accuracy
        if together is not None:
            ax.plot(
                [together], [i], marker="D", linestyle="none", color=theme.SERIES[1],
                label="their average" if i == 0 else None,
            )  # fmt: skip
            notes.append(Note(label, "the average", percent(together, 2), (together, i)))
    ax.set_yticks(range(len(held)), [beside_axis(name(summary, row)) for row, _ in held])
    ax.set_ylim(len(held) - 0.4, -0.6)
    ax.xaxis.set_major_formatter(lambda value, _: percent(value, 1))
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
    else:
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    return notes


def comment_own(summary: Summary) -> list[Sentence]:
    """Comment on the workers alone beside their average."""
    states = []
    for row, each in with_own(summary):
        together = typical_run(row).accuracy
        if together is not None:
            verdict = "better" if together > max(each) else "not better"
            states.append(
                say(
                    "{who}: the average ({together}) is {verdict} than the best worker alone "
                    "({alone}).",
                    who=who(summary, row), verdict=verdict,
                    together=of_typical_run(
                        row, "accuracy of one run", together, percent(together, 2)
                    ),
                    alone=of_typical_run(
                        row, "best own accuracy", max(each), percent(max(each), 2)
                    ),
                )
            )  # fmt: skip
    return states


def comment_distance(summary: Summary) -> list[Sentence]:
    """Comment on how far apart the replicas are."""
    states = []
    for row, pairs in with_distance(summary):
        first = of_typical_run(row, "first distance", pairs[0][1], f"{pairs[0][1]:.3g}")
        last = of_typical_run(row, "last distance", pairs[-1][1], f"{pairs[-1][1]:.3g}")
        course = say("from {first} at the first to {last} at the last measurement", first=first,
                     last=last)  # fmt: skip
        if len(pairs) == 1:
            course = say("{first} at the only measurement", first=first)
        states.append(say("{who}: {course}.", who=who(summary, row), course=course))
    return states
