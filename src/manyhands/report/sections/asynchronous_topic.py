"""Whether synchronous or asynchronous training is the better choice: a topic of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.best_configuration import learned
from manyhands.report.analysis.significance import compare
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.wording.sentences import Name, Sentence, listed, say

ASYNCHRONOUS = ("server", "hogwild")
SAME = 0.05  # amounts of work that differ by less are the same
MOST = 3  # comparisons
Pair = tuple[Row, Row]  # an asynchronous configuration and a synchronous one


def sentences(summary: Summary) -> Iterable[Sentence]:
    """Compare asynchronous with synchronous training where both had as many workers."""
    held = {kind: _pairs(summary, kind) for kind in ASYNCHRONOUS}
    pairs = [pair for mine in held.values() for pair in _widest(mine)][:MOST]
    chosen_among = len(summary.choice.candidates) - 1 if summary.choice else 0  # one p on a page
    comparisons = max(2 * len(pairs), chosen_among)
    for row, base in pairs:
        named = summary.best is row or summary.best is base  # the headline's claim, by its test
        yield _pace(summary, row, base, 1 if named else comparisons)
        if row.accuracy and base.accuracy:
            yield _quality(summary, row, base, comparisons)
    rows = {id(row): row for pair in pairs for row in pair if "wait" in row.shares}.values()
    if rows:
        parts = [
            say("{part} with {who}{idle}", who=_who(summary, r), part=facts.lost(r),
                idle=facts.idle(r, ", which is idle for another {idle} at the end"))
            for r in rows
        ]  # fmt: skip
        yield say(
            "Part of the workers' time that goes into communication or waiting: {each}.",
            each=listed(parts, "; ", "; "),
        )


def _pairs(summary: Summary, kind: str) -> list[Pair]:
    """Return the rows of an asynchronous strategy, each with the synchronous one that is alike."""
    rows = [row for row in summary.comparable if row.seconds and row.workers > 1]
    late = [r for r in rows if r.group.strategy == kind and r.runs[0].config.get("staleness") != 0]
    pairs = []
    for row in sorted(late, key=lambda row: row.workers):
        bases = [
            base
            for base in rows
            if base.group.strategy == "sync"
            and base.workers == row.workers
            and base.computer == row.computer
            and summary.alike(row, base)
            and _same_work(row, base)
        ]
        if bases:
            pairs.append((row, bases[0]))
    return pairs


def _same_work(row: Row, base: Row) -> bool:
    """Say whether both trained on as many examples: a run may stop at its target."""
    if row.examples is None or base.examples is None:
        return True
    return abs(row.examples - base.examples) <= SAME * base.examples


def _widest(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs with the most workers of every source; where cores allow, uncrowded ones."""
    widest = []
    for source in dict.fromkeys(row.group.source for row, _ in pairs):
        mine = [pair for pair in pairs if pair[0].group.source == source]
        roomy = [pair for pair in mine if not pair[0].crowded] or mine
        most = max(row.workers for row, _ in roomy)
        widest += [pair for pair in roomy if pair[0].workers == most]
    return widest


def _who(summary: Summary, row: Row) -> Name:
    """Name a configuration, with its place where that is not its number of workers."""
    by_workers = summary.layout.x == "workers"
    return facts.label(row) if by_workers else facts.who(summary, row)


def _pace(summary: Summary, row: Row, base: Row, comparisons: int) -> Sentence:
    first, second = sorted((row, base), key=lambda each: facts.time(each).value)
    verdict = compare(row, base, "seconds", comparisons)
    within = facts.within(first, second)
    faster = say(
        "{within}{which} is {pace} as fast",
        within=f"; {within}, " if within else ": ",
        which=_who(summary, first),
        pace=facts.pace(first, second),
    )
    return say(
        "With {workers}, {who} trains in {mine} and {base} in {theirs}{faster}{hedge}{crowded}.",
        workers=facts.workers(row), who=_who(summary, row), base=_who(summary, base),
        mine=facts.time(row), theirs=facts.time(base), crowded=_crowding(row, base),
        faster=faster if verdict.apart else "", hedge=verdict.hedge(),
    )  # fmt: skip


def _quality(summary: Summary, row: Row, base: Row, comparisons: int) -> Sentence:
    gap = facts.gap(row, base)
    states = say(
        "The accuracy of {who} is {mine}, against {theirs} with {base}",
        who=_who(summary, row), mine=facts.accuracy(row),
        theirs=facts.accuracy(base), base=_who(summary, base),
    )  # fmt: skip
    if row.collapsed or not learned(row):
        return say("{states}: it learned little.", states=states)
    if row.unlearned or base.unlearned:
        return say("{states}.", states=states)
    return say(
        "{states}: {gap} {side}{hedge}.", states=states, gap=gap,
        side="higher" if gap.value >= 0 else "lower",
        hedge=compare(row, base, "accuracy", comparisons).hedge(),
    )  # fmt: skip


def _crowding(*rows: Row) -> Sentence:
    crowded = [row for row in rows if row.crowded]
    if not crowded:
        return say("")
    counts = facts.numbers(crowded, lambda row: facts.processes(row, ""))
    return say("; {counts} processes share {cores}", counts=counts, cores=facts.cores(crowded[0]))
