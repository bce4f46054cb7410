"""One step of a pipeline, pass by pass: a line per stage, so that one sees the pipeline fill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.collections import PolyCollection

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configurations import name, typical_run
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.records.fields import finite, mapping, number, sequence, text
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import beside_axis, percent, seconds, some, times
from manyhands.report.wording.sentences import Fact, Sentence, fact, say

MOST = 6
GAP = 1.4  # between configurations, in lines
HALF = 0.4  # of a line's thickness
PASSES = {
    "forward": ("forward", theme.SERIES[0]),
    "backward": ("backward", theme.SERIES[2]),
    "communicate": ("communicating", theme.SERIES[4]),
    "update": ("updating parameters", theme.SERIES[5]),
}


def events(run: Run) -> list[Mapping[str, Any]]:
    """Return the passes of one step that can be drawn."""
    found = [mapping(event) for event in sequence(run.facts.get("timeline"))]
    return [
        event
        for event in found
        if text(event, "what") in PASSES
        and None not in [number(event, key) for key in ("rank", "begin", "end")]
    ]


def held(summary: Summary) -> list[tuple[Row, list[Mapping[str, Any]]]]:
    """Return the configurations that recorded a step, the first few of them."""
    found = [(row, list(events(typical_run(row)))) for row in summary.rows]
    return [pair for pair in found if pair[1]][:MOST]


def tall(summary: Summary) -> int:
    """Return how tall the plot must be, in points."""
    pairs = held(summary)
    lines = sum(len({event["rank"] for event in found}) for _, found in pairs)
    return int(max(60, 14 * (lines + GAP * len(pairs))))


def draw(ax: Any, summary: Summary) -> list[Note]:
    """Draw the passes as bars along the time; where there is none, a stage stands idle."""
    notes: list[Note] = []
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for row, found in held(summary):
        ranks = sorted({int(event["rank"]) for event in found})
        label = name(summary, row)
        ticks.append((y + (len(ranks) - 1) / 2, beside_axis(label)))
        for rank in ranks:
            notes += [_bar(label, e, y) for e in found if e["rank"] == rank]
            y += 1
        y += GAP
    for words, colour in PASSES.values():
        corners = [_corners(note) for note in notes if note.x.startswith(words)]
        if corners:
            ax.add_collection(PolyCollection(corners, facecolor=colour, linewidth=0, label=words))
    ax.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    ax.set_ylim(y - GAP, -1)
    ax.set_xlim(0, 1.02 * max((n.at[0] + n.size[0] for n in notes if n.size), default=1))
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    return notes


def _bar(label: str, event: Mapping[str, Any], y: float) -> Note:
    """Return one pass as a bar, in milliseconds."""
    begin, end = 1000 * event["begin"], 1000 * event["end"]
    part = finite(event.get("micro_batch"))
    words = PASSES[event["what"]][0] + ("" if part is None else f", micro-batch {part:g}")
    stage = finite(event.get("stage"))
    who = "driver" if stage is None else f"stage {stage:g}"
    value = f"{seconds((end - begin) / 1000)} from {seconds(begin / 1000)} on"
    return Note(f"{label}, {who}", words, value, (begin, y + HALF), (end - begin, -2 * HALF))


def _corners(note: Note) -> list[tuple[float, float]]:
    assert note.size is not None
    (x, y), (width, height) = note.at, note.size
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


def comment(summary: Summary) -> list[Sentence]:
    """Say how much of a step the stages stand idle, beside theory, and which of them is slowest."""
    rows = sorted((row for row, _ in held(summary)), key=_idle)
    return some(*(_sentence(summary, row) for row in (rows[:1] + rows[-1:] if rows[1:] else rows)))


def _idle(row: Row) -> float:
    """Return which part of a step the stages stand idle, on average."""
    stages = [mapping(stage) for stage in sequence(typical_run(row).facts.get("stages"))]
    bubbles = [b for stage in stages if (b := number(stage, "bubble")) is not None]
    return sum(bubbles) / len(bubbles) if bubbles else 0.0


def _sentence(summary: Summary, row: Row) -> Sentence:
    """Say it of one configuration; nothing where its record does not."""
    run = typical_run(row)
    record = run.facts
    stages = [mapping(s) for s in sequence(record.get("stages"))]
    stages = [s for s in stages if number(s, "stage") is not None]
    bubbles = [b for s in stages if (b := number(s, "bubble")) is not None]
    busy = [c for s in stages if (c := number(s, "compute"))]
    ideal, parts = number(record, "ideal_bubble"), number(record, "micro_batches")
    if not bubbles or not busy or ideal is None or parts is None:
        return say("")

    def stated(what: str, value: float, text: str) -> Fact:
        return fact(what, value, how="derived", runs=[run], text=text)

    idle, uneven = sum(bubbles) / len(bubbles), max(busy) / min(busy)
    batches = f"{parts:g} micro-batch{'' if parts == 1 else 'es'}"
    return say(
        "{who}: with {parts} the stages stand idle {idle} of a step's two passes ({ideal} if all "
        "took equally long and messages took no time); the slowest computes {uneven} as long as "
        "the fastest.",
        who=facts.who(summary, row), parts=stated("micro-batches", parts, batches),
        idle=stated("mean bubble", idle, percent(idle)),
        ideal=stated("ideal bubble", ideal, percent(ideal)),
        uneven=stated("slowest stage against the fastest", uneven, times(uneven)),
    )  # fmt: skip
