"""The notes below the table: what its columns mean, and what makes configurations differ."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis import option_values, significance
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import speedup
from manyhands.report.records.fields import text
from manyhands.report.wording.formatting import seconds, some
from manyhands.report.wording.sentences import Name, Sentence, listed, say

_NAMED = 2  # curves that a note names; more are counted
_SCALED = {
    "linear": "multiplied by the workers",
    "sqrt": "multiplied by the root of the workers",
    "inverse": "divided by the workers",
}


def notes(summary: Summary, found: option_values.Comparison | None = None) -> list[Sentence]:
    """Say what the columns mean; the figure of a comparison explains the test itself."""
    states = [_star(summary)]
    if summary.repeats > 1:
        measure = f"values of {summary.metric}" if summary.metric else "accuracies"
        states.append(
            say(
                "Times and {measure} are medians over the repeats; ± is half the distance between "
                "the lowest and the highest of them.",
                measure=measure,
            )
        )
        states.append(say("") if found else significance.method(summary.rows))
    states.append(_spread(summary))
    states.append(speedup.baseline(summary) if summary.has_speedup else _no_speedup(summary))
    if summary.target is not None and not summary.target_given:
        each = "every repeat of " if summary.repeats > 1 else ""
        states.append(
            say(
                "The target of {target} is the highest half percent that {each}at least half of "
                "the configurations reached. Only evaluations show when a run reaches it.",
                target=facts.target(summary), each=each,
            )
        )  # fmt: skip
    states += [rates(summary), kernels(summary)]
    states.append(_apart(summary.comparable))
    return some(*states)


def _star(summary: Summary) -> Sentence:
    """Say what marks the best, the tied, or what leads without support."""
    choice = summary.choice
    if choice is None or not choice.learned:
        return say("")
    if choice.supported:
        return say("★ best: {rule}.", rule=choice.rule)
    if choice.tied:
        return say(
            "≈ tied: the repeats overlap with those of {who}, which has {rule}.",
            who=facts.who(summary, choice.leader), rule=choice.rule,
        )  # fmt: skip
    return say("★ leads: {rule}; the repeats do not show that it is best.", rule=choice.rule)


def _no_speedup(summary: Summary) -> Sentence:
    """Say that there is nothing to compare with, unless there is and it was profiled, say."""
    if any(row.reference for row in summary.rows):
        return say("")
    return say(
        "No speed-up is given: the same task has neither a sequential run nor one with one worker."
    )


def _spread(summary: Summary) -> Sentence:
    """Say what is known of the spread."""
    counts = {len(row.runs) for row in summary.rows}
    if counts == {1}:
        return say("Every configuration ran once, so no spread is known.")
    if 1 in counts:
        return say("Where a configuration ran once, no spread is known.")
    return say("")


def rates(summary: Summary) -> Sentence:
    """Say where the learning rate follows the workers, if it does not do so everywhere."""
    found: dict[str, list[Row]] = {}
    for row in summary.rows:
        kind = str(row.runs[0].config.get("lr_scaling")) if row.workers > 1 else "none"
        found.setdefault(kind, []).append(row)
    states = [
        say("{how} in {which}", how=_SCALED[kind], which=_which(rows))
        for kind, rows in found.items()
        if kind in _SCALED
    ]
    if len(found) < 2 or not states:
        return say("")
    return say(
        "The learning rate is {states}, which also changes the accuracy.",
        states=listed(states, "; ", "; "),
    )


def kernels(summary: Summary) -> Sentence:
    """Say which configurations computed with other kernels than the rest."""
    found: dict[str, list[Row]] = {}
    for row in summary.rows:
        for kind in {text(run.kernels, "choice") for run in row.runs} - {""}:
            found.setdefault(kind, []).append(row)
    if len(found) < 2:
        return say("")
    states = [
        say("{which} with {kind}", which=_which(rows), kind=Name(kind))
        for kind, rows in sorted(found.items())
    ]
    return say(
        "The kernels differ, which also changes the times: {states}.",
        states=listed(states, "; ", "; "),
    )


def _which(rows: Sequence[Row]) -> Sentence:
    """Name the curves that some configurations are on, or count the configurations."""
    labels = list(dict.fromkeys(facts.label(row) for row in rows))
    if len(labels) <= _NAMED:
        return listed(labels)
    return say("{count} configurations", count=facts.configurations(rows))


def _apart(rows: Sequence[Row]) -> Sentence:
    """Say how long was spent on what is not counted."""
    parts = []
    for words, what in (
        ("start-up", "startup"), ("evaluation", "evaluation"), ("callbacks", "callbacks"),
    ):  # fmt: skip
        known = [(row, value) for row in rows if (value := getattr(row, what)) is not None]
        known = [(row, value) for row, value in known if value or what != "callbacks"]
        if known:
            span = facts.extremes(what, known, seconds)
            parts.append(say("{words} ({span})", words=words, span=span))
    return say("Times leave out {parts}.", parts=listed(parts)) if parts else say("")
