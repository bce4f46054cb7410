"""Comments on the training times: the shortest, where more workers bring nothing, the spread."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.report import bottlenecks, facts
from manyhands.report.facts import who
from manyhands.report.formatting import percent, seconds, some
from manyhands.report.notes import spread
from manyhands.report.sentences import Name, Sentence, fact, listed, say
from manyhands.report.significance import slower
from manyhands.report.summary import Row, Summary


def comment(summary: Summary) -> list[Sentence]:
    """Comment on the training times."""
    rows = [row for row in summary.comparable if row.seconds]
    return some(
        say("") if summary.scaling == "weak" or summary.tasks > 1 else _fastest(summary, rows),
        _flatness(summary), _turning(summary), bottlenecks.crowding(summary),
        spread(summary), _apart(rows),
    )  # fmt: skip


def _fastest(summary: Summary, rows: Sequence[Row]) -> Sentence:
    values = [(row, _median(row)) for row in rows]
    fastest = min(rows, key=_median)
    time = facts.extreme("seconds", fastest, values, False, seconds)
    return say("{who} had the shortest time: {time}.", who=who(summary, fastest), time=time)


def _median(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds.median


def _turning(summary: Summary) -> Sentence:
    """Say from which number of workers on a group takes longer again."""
    if summary.layout.x != "workers":
        return say("")
    states = []
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.seconds and not row.overran]
        if not rows or rows[0].scaling == "weak":
            continue
        least = min(rows, key=_median)
        last = rows[-1]
        if last is not least and slower(last, least, summary.of(group), summary.rows):
            longer = _median(last) / _median(least) - 1
            excess = fact(
                "seconds", longer, how="excess", runs=last.runs, against=least.runs,
                text=percent(longer),
            )  # fmt: skip
            states.append(
                say(
                    "{label} took least with {few} and {excess} longer with {many}",
                    label=Name(group.label), few=facts.workers(least), excess=excess,
                    many=facts.workers(last, ""),
                )
            )  # fmt: skip
    return say("{states}.", states=listed(states, "; ", "; ")) if states else say("")


def _flatness(summary: Summary) -> Sentence:
    """Say how the time changes when the work grows with the workers; ideally it does not."""
    states = []
    by_workers = summary.layout.x == "workers"
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.seconds]
        if by_workers and len(rows) > 1 and rows[0].scaling == "weak":
            first, last = rows[0], rows[-1]
            grown = last.workers / first.workers
            more = fact(
                "workers", grown, how="multiple", runs=last.runs, against=first.runs,
                text=f"{grown:.3g}",
            )  # fmt: skip
            states.append(
                say(
                    "{label} goes from {first} to {last} with {more} times the work", more=more,
                    label=Name(group.label), first=facts.time(first), last=facts.time(last),
                )
            )  # fmt: skip
    if not states:
        return say("")
    return say("The work grows with the workers, and {states}.", states=listed(states))


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
    return say("Not counted: {parts}.", parts=listed(parts)) if parts else say("")
