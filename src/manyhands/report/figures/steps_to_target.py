"""Steps to a target accuracy against the workers, beside the 1/P of theory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.run_groups import Group
from manyhands.report.analysis.spread import Spread, spread
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.figures.plots import ranged_text, styles
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import count, exact_percent, percent, plural, times
from manyhands.report.wording.sentences import Fact, Name, Sentence, fact, listed, say

NEAR = 0.15  # of the steps that theory says: theory holds


def steps(run: Run, target: float) -> float | None:
    """Return the steps that each worker took to the target.

    Accuracy is known where the run was evaluated; between two evaluations it is taken to rise
    evenly.
    """
    before: tuple[float, float] | None = None
    for epoch in run.epochs:
        if epoch.accuracy is None:  # not evaluated
            continue
        if epoch.steps is None:
            return None
        if epoch.accuracy >= target:
            if before is None:
                return epoch.steps
            done, reached = before
            part = (target - reached) / (epoch.accuracy - reached)
            return done + part * (epoch.steps - done)
        before = (epoch.steps, epoch.accuracy)
    return None


def arrived(row: Row, target: float) -> Spread | None:
    """Return the steps of a configuration; None where a repeat did not get there."""
    found = [steps(run, target) for run in row.runs]
    return None if None in found else spread(found)


def curves(summary: Summary) -> dict[Group, list[tuple[Row, Spread]]]:
    """Return each group's steps by workers, where a target was asked for and several got there."""
    if summary.target is None or not summary.target_given or summary.layout.x != "workers":
        return {}
    found = {
        group: [(r, s) for r in summary.of(group) if (s := arrived(r, summary.target or 0))]
        for group in summary.groups
    }
    return {group: pairs for group, pairs in found.items() if len(pairs) > 1}


def title(summary: Summary) -> str:
    """Return the figure's title, which names the target."""
    return f"Steps to {exact_percent(summary.target or 0)} accuracy"


def draw(ax: Any, summary: Summary) -> list[Note]:
    """Draw the steps on logarithmic axes, and for each curve the 1/P of theory from its start."""
    notes: list[Note] = []
    looks = styles(summary)
    found = curves(summary)
    for group, pairs in found.items():
        look = looks[group]
        workers = [row.workers for row, _ in pairs]
        medians = [got.median for _, got in pairs]
        ax.plot(
            workers, medians, color=look.colour, marker=look.marker, linestyle=look.line,
            label=group.label, zorder=3,
        )  # fmt: skip
        ax.vlines(
            workers, [got.low for _, got in pairs], [got.high for _, got in pairs],
            color=look.colour, linewidth=1.4, zorder=2.5,
        )  # fmt: skip
        ends = [workers[0], workers[-1]]
        theory = [medians[0] * workers[0] / p for p in ends]
        ax.plot(ends, theory, color=look.colour, linewidth=1, linestyle=(0, (1, 2)), zorder=2)
        notes += [
            Note(group.label, plural(p, "worker"), f"{ranged_text(got, count)} steps", (p, m))
            for p, m, (_, got) in zip(workers, medians, pairs, strict=True)
        ]
    ax.plot([], [], color=theme.MUTED, linewidth=1, linestyle=(0, (1, 2)), label="1/P, theory")
    places = sorted({row.workers for pairs in found.values() for row, _ in pairs})
    heights = [got.median for pairs in found.values() for _, got in pairs]
    levels = sorted({min(heights), max(heights), (min(heights) * max(heights)) ** 0.5})
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(places, [f"{p:g}" for p in places])
    ax.set_yticks(levels, [count(level) for level in levels])
    ax.set_xticks([], minor=True)
    ax.set_yticks([], minor=True)
    return notes


def comment(summary: Summary) -> list[Sentence]:
    """Say how far the steps fall with the workers as theory says, and why not where they do not."""
    states = [_sentence(summary, group, pairs) for group, pairs in curves(summary).items()]
    late = [
        facts.who(summary, row)
        for group in curves(summary)
        for row in summary.of(group)
        if arrived(row, summary.target or 0) is None and not row.overran
    ]
    if late:
        target = facts.target(summary)
        states.append(say("Not in every repeat at {t}: {late}.", t=target, late=listed(late)))
    states.append(
        say(
            "Theory says that the steps fall inversely with the workers, as long as each brings a "
            "batch of its own; between two evaluations the accuracy is taken to rise evenly."
        )
    )
    return states


def _first(pair: tuple[float, Run]) -> float:
    return pair[0]


def _sentence(summary: Summary, group: Group, pairs: list[tuple[Row, Spread]]) -> Sentence:
    (first, start), (last, end) = pairs[0], pairs[-1]
    parameters = {"target": summary.target or 0.0}

    def stated(value: float, runs: Sequence[Run]) -> Fact:
        return fact("steps to target", value, runs=runs, parameters=parameters, text=count(value))

    def taken(row: Row, found: Spread) -> Sentence:
        middle = stated(found.median, row.runs)
        if count(found.low) == count(found.high):
            return say("{middle}", middle=middle)
        each = [(steps(run, summary.target or 0.0) or 0.0, run) for run in row.runs]
        low, high = (
            stated(value, [run]) for value, run in (f(each, key=_first) for f in (min, max))
        )
        return say("{middle} ({low} to {high})", middle=middle, low=low, high=high)

    ratio, ideal = start.median / end.median, last.workers / first.workers
    fewer = fact(
        "steps to target", ratio, how="ratio", runs=last.runs, against=first.runs,
        parameters=parameters, text=times(ratio),
    )  # fmt: skip
    theory = fact(
        "workers", ideal, how="multiple", runs=last.runs, against=first.runs, text=times(ideal)
    )
    states = say(
        "{label}: {start} steps with {few}, {end} with {many}, {fewer} fewer where theory says "
        "{theory}",
        label=Name(group.label), start=taken(first, start), few=facts.workers(first),
        end=taken(last, end), many=facts.workers(last, ""), fewer=fewer, theory=theory,
    )  # fmt: skip
    batches = {row.runs[0].config.get("batch_size") for row, _ in pairs}
    if group.strategy == "sync" and len(batches) == 1:
        return say(
            "{states}; the batch behind an update is the same for all, and so are the steps.",
            states=states,
        )
    near = [
        row
        for row, found in pairs[1:]
        if abs(found.median * row.workers / (start.median * first.workers) - 1) <= NEAR
    ]
    level = facts.threshold("near the steps of theory", NEAR, percent(NEAR))
    if not near:
        return say("{states}; none is within {level} of it.", states=states, level=level)
    counts = listed([facts.workers(row, "") for row in near])
    words = "{states}; within {level} of it with {counts} workers."
    return say(words, states=states, counts=counts, level=level)
