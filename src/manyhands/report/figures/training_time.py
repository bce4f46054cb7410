"""Comments on the training times: where more workers take longer, and how weak scaling goes."""

from __future__ import annotations

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.significance import slower
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import bottlenecks
from manyhands.report.wording.formatting import percent, some
from manyhands.report.wording.sentences import Name, Sentence, fact, listed, say


def comment(summary: Summary) -> list[Sentence]:
    """Comment on the training times."""
    return some(_flatness(summary), _turning(summary), bottlenecks.crowding(summary))


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
        if not rows or len({row.computer for row in rows}) > 1 or rows[0].by_rate:
            continue
        least = min(rows, key=_median)
        last = rows[-1]
        if last is not least and slower(last, least, summary.of(group)):
            excess = facts.excess("seconds", last, least, percent)
            states.append(
                say(
                    "{label} was fastest with {few} and took {excess} longer with {many}",
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
