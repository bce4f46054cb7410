"""How much data the strategies of a report send: the formula, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.exchanges import Exchange, exchanges
from manyhands.report.analysis.run_facts import median, stated
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.wording.formatting import percent, plural, size
from manyhands.report.wording.sentences import Fact, Sentence, fact, listed, say

EXACT = 0.005  # a smaller deviation from a formula is not worth a word
FORMULAS = {
    "naive": ("(P − 1) n", "P (P − 1) n"),
    "allgather": ("(P − 1) n", "P (P − 1) n"),
    "ring": ("2 n (P − 1) / P", "2 (P − 1) n"),
    "recursive-doubling": ("n log₂ P", "P n log₂ P"),
    "rabenseifner": ("2 n (P − 1) / P", "2 (P − 1) n"),
}


def sentences(summary: Summary) -> Iterable[Sentence]:
    """State formula and measurement for every all-reduce and for the masters."""
    known = [e for e in exchanges(summary) if e.algorithm in FORMULAS and e.expected is not None]
    for source in _sources(known):
        yield from _reduced([e for e in known if e.row.group.source == source])
    yield from _uncounted(summary)
    yield from _pushed(summary)
    yield from _outer(summary)
    yield from _whole(summary)


def _sources(found: Sequence[Exchange]) -> list[str]:
    """Return the source with the most all-reduces, or two where each has one."""
    kinds: dict[str, set[str]] = {}
    for one in found:
        kinds.setdefault(one.row.group.source, set()).add(one.algorithm)
    order = sorted(kinds, key=lambda name: -len(kinds[name]))
    return order[:1] if order and len(kinds[order[0]]) > 1 else order[:2]


def _reduced(found: Sequence[Exchange]) -> Iterable[Sentence]:
    """State what each worker and all of them send for one all-reduce, and how long it takes."""
    n = stated("bytes of the parameters", found[0].row.runs, size)
    if n is None:
        return
    by_kind: dict[str, list[Exchange]] = {}
    for one in sorted(found, key=lambda e: (e.row.workers, e.row.group.strategy != "sync")):
        mine = by_kind.setdefault(one.algorithm, [])
        if one.row.workers not in [e.row.workers for e in mine]:
            mine.append(one)
    for kind, mine in by_kind.items():
        each, everyone = FORMULAS[kind]
        yield say(
            "One {kind} all-reduce of the gradient (n = {n}) with P = {counts} workers: each sends "
            "{each}, measured {mine}; all together {everyone}, measured {all}{off}.",
            kind=kind, n=n, counts=listed([facts.workers(e.row, "") for e in mine]), each=each,
            everyone=everyone, mine=listed([_measured(e, 1) for e in mine]),
            all=listed([_measured(e, e.row.workers) for e in mine]), off=_off(mine),
        )  # fmt: skip


def _measured(one: Exchange, workers: int) -> Fact:
    value = one.measured * workers
    what = "bytes per exchange" if workers == 1 else "bytes of all per exchange"
    return fact(what, value, how="derived", runs=one.row.runs, text=size(value))


def _off(found: Sequence[Exchange]) -> Sentence:
    """Say so where the formula gives something else."""
    worst = max(found, key=lambda e: e.off)
    return (
        say("") if worst.off < EXACT else say(", up to {off} off the formula", off=worst.off_fact())
    )


def _uncounted(summary: Summary) -> Iterable[Sentence]:
    """Say so where MPI's own all-reduce sends what is not counted."""
    if any(
        row.workers > 1 and row.runs[0].config.get("allreduce") == "mpi" and row.bytes is None
        for row in summary.rows
    ):
        yield say("The bytes of MPI's own all-reduce are not counted: the library sends them.")


def _pushed(summary: Summary) -> Iterable[Sentence]:
    """State what a worker sends to the masters for one batch."""
    rows = [row for row in summary.rows if median("bytes per push", row.runs) is not None]
    for source in list(dict.fromkeys(row.group.source for row in rows))[:2]:
        row = max((r for r in rows if r.group.source == source), key=lambda r: r.workers)
        sent, n = median("bytes per push", row.runs), median("bytes of the parameters", row.runs)
        count = median("masters", row.runs)
        if sent is None or n is None or not count:
            continue
        head = fact("header bytes of a push", (sent - n) / count, how="derived", runs=row.runs,
                    text=f"{(sent - n) / count:.0f} bytes")  # fmt: skip
        yield say(
            "{who}: for one batch a worker sends n + M headers = {sent} ({n} of gradients, {m} of "
            "{head}), and the masters answer with as much, however many workers there are.",
            who=facts.label(row), sent=stated("bytes per push", row.runs, size),
            n=stated("bytes of the parameters", row.runs, size), head=head,
            m=stated("masters", row.runs, lambda v: plural(v, "header")),
        )  # fmt: skip


def _outer(summary: Summary) -> Iterable[Sentence]:
    """State what outer steps send per step of a worker, and what their precision costs."""
    for row in summary.rows:
        runs = row.runs
        steps, sent = median("outer steps", runs), median("bytes per step", runs)
        if row.workers < 2 or not steps or sent is None:
            continue
        error = median("rounding error of an exchange", runs)
        off = say(
            "; rounding changed what a worker sent by up to {error} of its length",
            error=stated("rounding error of an exchange", runs, lambda v: percent(v, 3)),
        )
        yield say(
            "{who}: {steps}; each worker sends {sent} per step on average{off}.",
            who=facts.label(row),
            steps=stated("outer steps", runs, lambda v: plural(v, "outer step")),
            sent=stated("bytes per step", runs, size),
            off=off if error else say(""),
        )


def _whole(summary: Summary) -> Iterable[Sentence]:
    """Compare the whole run's bytes where several strategies had as many workers."""
    for source in summary.loaded.sources:
        rows = [r for r in summary.rows if r.group.source == source.label and r.workers > 1]
        rows = sorted((row for row in rows if row.bytes), key=lambda row: -row.workers)
        for first in rows:
            kin = [r for r in rows if r.workers == first.workers and summary.alike(first, r)]
            one_each = {row.group.strategy: row for row in reversed(kin)}
            if len(one_each) > 1:
                yield say(
                    "In a whole run with {workers} all processes together moved {each}.",
                    workers=facts.workers(first),
                    each=listed([_all(row) for row in one_each.values()]),
                )
                break


def _all(row: Row) -> Sentence:
    return say("{bytes} with {who}", bytes=stated("bytes", row.runs, size), who=facts.label(row))
