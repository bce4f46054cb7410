"""How much data the strategies of a report send: the formula, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from manyhands.report.quantities import middle, stated
from manyhands.report.sentences import Fact, Sentence, fact, listed, say
from manyhands.report.tables import Row, Summary
from manyhands.report.traffic import Exchange, exchanges
from manyhands.report.wording import plural, size

FORMULAS = {
    "naive": ("(P − 1) n", "P (P − 1) n"),
    "allgather": ("(P − 1) n", "P (P − 1) n"),
    "ring": ("2 n (P − 1) / P", "2 (P − 1) n"),
    "recursive-doubling": ("n log₂ P", "P n log₂ P"),
    "rabenseifner": ("2 n (P − 1) / P", "2 (P − 1) n"),
}


def sentences(summary: Summary) -> Iterable[Sentence]:
    """State formula and measurement for every all-reduce and for the masters."""
    found = exchanges(summary)
    widest: dict[tuple[str, str], Exchange] = {}
    for one in sorted(found, key=lambda e: e.row.workers):
        if one.algorithm in FORMULAS and one.expected is not None:
            widest[one.row.group.source, one.algorithm] = one
    for source in _sources(list(widest.values())):
        yield from _reduced([e for e in widest.values() if e.row.group.source == source])
    yield from _uncounted(summary)
    yield from _pushed(summary)
    yield from _whole(summary)


def _sources(found: Sequence[Exchange]) -> list[str]:
    """Return the sources, the one with most algorithms first; two are enough."""
    names = list(dict.fromkeys(e.row.group.source for e in found))
    count = {name: sum(e.row.group.source == name for e in found) for name in names}
    kept = sorted(names, key=lambda name: -count[name])[:2]
    return kept[:1] if kept and count[kept[0]] > 1 else kept


def _reduced(found: Sequence[Exchange]) -> Iterable[Sentence]:
    """State what each worker and all of them send for one all-reduce."""
    n = stated("bytes of the parameters", found[0].row.runs, size)
    if n is None:
        return
    parts = []
    for one in found:
        each, everyone = FORMULAS[one.algorithm]
        p = one.row.workers
        parts.append(say(
            "with {name} each worker sends {each} = {theory} (measured: {mine}), all of them "
            "{everyone} = {total}",
            name=one.algorithm, each=each, everyone=everyone,
            theory=_theory(one, 1), mine=_measured(one), total=_theory(one, p),
        ))  # fmt: skip
    counts = dict.fromkeys(e.row.workers for e in found)
    yield say(
        "One all-reduce of the gradient, n = {n}, over P = {counts} workers: {parts}.",
        n=n, counts=listed([str(p) for p in counts]), parts=listed(parts, "; ", "; "),
    )  # fmt: skip


def _theory(one: Exchange, workers: int) -> Fact:
    value = (one.expected or 0) * workers
    what = f"bytes by the formula of {one.algorithm}, {'each' if workers == 1 else 'all'}"
    return fact(what, value, how="derived", runs=one.row.runs, text=size(value))


def _measured(one: Exchange) -> Fact:
    return fact("bytes per exchange", one.measured, runs=one.row.runs, text=size(one.measured))


def _uncounted(summary: Summary) -> Iterable[Sentence]:
    """Say so where MPI's own all-reduce sends what is not counted."""
    if any(
        row.workers > 1 and row.runs[0].config.get("allreduce") == "mpi" and row.bytes is None
        for row in summary.rows
    ):
        yield say("What MPI's own all-reduce sends, it sends inside the library: not counted here.")


def _pushed(summary: Summary) -> Iterable[Sentence]:
    """State what a worker sends to the masters for one batch."""
    rows = [row for row in summary.rows if middle("bytes per push", row.runs) is not None]
    for source in list(dict.fromkeys(row.group.source for row in rows))[:2]:
        row = max((r for r in rows if r.group.source == source), key=lambda r: r.workers)
        sent, n = middle("bytes per push", row.runs), middle("bytes of the parameters", row.runs)
        count = middle("masters", row.runs)
        if sent is None or n is None or not count:
            continue
        head = fact("header bytes of a push", (sent - n) / count, how="derived", runs=row.runs,
                    text=f"{(sent - n) / count:.0f} bytes")  # fmt: skip
        yield say(
            "{who}: for one batch a worker sends n + M headers = {sent} ({n} of gradients, {m} of "
            "{head}), and the masters answer with as much, however many workers there are.",
            who=row.label, sent=stated("bytes per push", row.runs, size),
            n=stated("bytes of the parameters", row.runs, size), head=head,
            m=stated("masters", row.runs, lambda v: plural(v, "header")),
        )  # fmt: skip


def _whole(summary: Summary) -> Iterable[Sentence]:
    """Compare the whole run's bytes where several strategies had as many workers."""
    for source in summary.loaded.sources:
        rows = [r for r in summary.rows if r.group.source == source.label and r.bytes]
        rows = [row for row in rows if row.workers > 1]
        shared = [p for p in {row.workers for row in rows}
                  if len({r.group.strategy for r in rows if r.workers == p}) > 1]  # fmt: skip
        if not shared:
            continue
        mine = [row for row in rows if row.workers == max(shared)]
        yield say(
            "In a whole run with {workers} all processes together moved {each}.",
            workers=plural(max(shared), "worker"), each=listed([_all(row) for row in mine[:4]]),
        )  # fmt: skip


def _all(row: Row) -> Sentence:
    return say("{bytes} with {who}", bytes=stated("bytes", row.runs, size), who=row.label)
