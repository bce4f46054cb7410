"""What was measured of asynchronous training: how busy the masters are, how late gradients are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from manyhands.report.alike import alike
from manyhands.report.explanations import STRATEGIES
from manyhands.report.plots import name
from manyhands.report.quantities import middle, stated
from manyhands.report.runs import Run
from manyhands.report.sentences import Fact, Sentence, fact, listed, say
from manyhands.report.significance import Verdict, compare
from manyhands.report.tables import Row, Summary
from manyhands.report.wording import count, percent, plural, points, seconds

FULL = 0.8  # of its time: a master that is busy for longer is the limit
LATE = ("server", "hogwild")
MOST = 3  # changes of accuracy in one sentence


def reason(summary: Summary, field: str) -> str:
    """Return what the strategies of the report say about masters, or about staleness."""
    names = sorted({row.group.strategy for row in summary.rows}, key=lambda one: one != "server")
    found = [getattr(STRATEGIES[name], field) for name in names if name in STRATEGIES]
    return next((text for text in found if text), "")


def masters(summary: Summary) -> Iterable[Sentence]:
    """Say how busy the masters were, and whether one would have been enough."""
    rows = [row for row in summary.rows if middle("busiest master", row.runs) is not None]
    if not rows:
        return
    rows = [row for row in rows if row.workers > 1] or rows
    roomy = [row for row in rows if not row.crowded] or rows
    row = max(roomy, key=lambda one: middle("masters together", one.runs) or 0)
    yield say(
        "Measured with {workers} and {masters}, where masters have most to do: a master needs "
        "{each} for a push, and the busiest works {busy} of the time{crowded}.",
        workers=plural(row.workers, "worker"), masters=_masters(row),
        each=stated("seconds per push", row.runs, seconds),
        busy=stated("busiest master", row.runs, lambda v: percent(v, 1)),
        crowded=_crowding(row),
    )  # fmt: skip
    yield from _enough(row)
    yield from _against(summary, rows)


def _count(row: Row) -> float:
    return middle("masters", row.runs) or 0.0


def _crowding(row: Row) -> str:
    return f", though {row.processes} processes share {row.cores} cores" if row.crowded else ""


def _masters(row: Row) -> Fact | None:
    return stated("masters", row.runs, lambda v: plural(v, "master"))


def _enough(row: Row) -> Iterable[Sentence]:
    load = middle("masters together", row.runs)
    if not load:
        return
    part = fact("masters together", load, runs=row.runs, text=percent(load, 1))
    if load >= FULL:
        yield say(
            "Together the masters work {part} of one process's time: one master alone would be the "
            "limit here.",
            part=part,
        )
        return
    alone = middle("masters", row.runs) == 1
    full = fact("workers / masters together", row.workers / load, how="derived", runs=row.runs,
                text=count(float(f"{row.workers / load:.2g}")))  # fmt: skip
    yield say(
        "{who} {part} of one process's time, so one master {is} enough here; at this pace it would "
        "be busy all the time with about {full} workers.",
        who="It works" if alone else "Together the masters work",
        **{"is": "is" if alone else "would have been"},
        part=part, full=full,
    )  # fmt: skip


def _against(summary: Summary, rows: Sequence[Row]) -> Iterable[Sentence]:
    """Compare different numbers of masters for the same workers, where both were run."""
    ordered = sorted((row for row in rows if row.seconds), key=_count)
    pairs = [
        (few, many)
        for i, few in enumerate(ordered)
        for many in ordered[i + 1 :]
        if few.workers == many.workers
        and _count(few) < _count(many)
        and alike(summary, few, many, but=("masters",))
    ]
    if not pairs and len({middle("masters", row.runs) for row in rows}) > 1:
        yield say(
            "No number of workers was run with different numbers of masters, so these runs do not "
            "show what more masters bring in time."
        )
    if not pairs:
        return
    few, many = max(pairs, key=lambda pair: (pair[0].workers, _count(pair[1])))
    yield say(
        "With {workers}, training takes {before} with {one} and {after} with {other}{hedge}.",
        workers=plural(few.workers, "worker"), one=_masters(few), other=_masters(many),
        before=stated("seconds", few.runs, seconds), after=stated("seconds", many.runs, seconds),
        hedge=compare(few, many, "seconds", 1, summary.rows).hedge(),
    )  # fmt: skip


def staleness(summary: Summary) -> Iterable[Sentence]:
    """Say how late gradients were, what the learning rate makes of it, and what accuracy does."""
    rows = [
        row
        for row in summary.rows
        if row.group.strategy in LATE and middle("mean staleness", row.runs) is not None
    ]
    # A limit on staleness is a remedy, not what happens without one.
    rows = [r for r in rows if r.workers > 1 and r.runs[0].config.get("staleness") is None]
    if rows:
        yield _late(rows)
        yield from _product(summary, rows)
        yield from _trend(summary, rows)
    yield from _diverged(summary)


def _late(rows: Sequence[Row]) -> Sentence:
    counted: dict[int, list[Run]] = {}
    for row in sorted(rows, key=lambda row: row.workers):
        counted.setdefault(row.workers, []).extend(row.runs)
    each = [
        say("{late} with {workers}", late=stated("mean staleness", runs, lambda v: f"{v:.2f}"),
            workers=plural(workers, "worker"))
        for workers, runs in counted.items()
    ]  # fmt: skip
    return say(
        "Measured, in updates by other workers between reading the parameters and applying the "
        "gradient: {each}. Workers of equal speed would have {ideal}.",
        each=listed(each), ideal=listed([str(workers - 1) for workers in counted]),
    )  # fmt: skip


def _product(summary: Summary, rows: Sequence[Row]) -> Iterable[Sentence]:
    """State the highest learning rate times staleness, which the bound is about."""
    known = [
        (rate * late, row)
        for row in rows
        if (rate := middle("learning rate", row.runs)) is not None
        and (late := middle("mean staleness", row.runs)) is not None
    ]
    if not known:
        return
    most, row = max(known, key=lambda pair: pair[0])
    product = fact("learning rate × mean staleness", most, how="derived", runs=row.runs,
                   text=f"{most:.2g}")  # fmt: skip
    yield say(
        "Learning rate times staleness, which the bound is about, is at most {most} in finished "
        "runs ({who}).",
        most=product, who=name(summary, row),
    )  # fmt: skip


def _trend(summary: Summary, late: Sequence[Row]) -> Iterable[Sentence]:
    """Compare the accuracy of the fewest and the most workers, asynchronous and synchronous."""
    for source in dict.fromkeys(row.group.source for row in late):
        mine = [row for row in late if row.group.source == source and row.accuracy]
        counts = {row.workers for row in mine}
        mine += [
            row
            for row in summary.rows
            if (row.group.source, row.group.strategy) == (source, "sync")
            and row.accuracy
            and row.workers in counts
        ]
        ends = _ends(summary, mine)
        parts = [
            _changed(few, many, compare(few, many, "accuracy", len(ends), summary.rows))
            for few, many in ends
        ]
        if parts:
            yield say(
                "Accuracy from the fewest to the most workers{where}: {parts}.",
                where=f" of {source}" if len(summary.loaded.sources) > 1 else "",
                parts=listed(parts[:MOST], "; ", "; "),
            )


def _ends(summary: Summary, rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return the rows with fewest and most workers that differ in workers and masters alone."""
    pairs = []
    ordered = sorted(rows, key=lambda row: row.workers)
    while ordered:
        first = ordered[0]
        kin = [
            row
            for row in ordered
            if row.group.strategy == first.group.strategy
            and alike(summary, first, row, but=("masters",))
        ]
        ordered = [row for row in ordered if row not in kin]
        if first.workers < kin[-1].workers:
            pairs.append((first, kin[-1]))
    return sorted(pairs, key=_change)


def _change(pair: tuple[Row, Row]) -> float:
    few, many = (row.accuracy.median if row.accuracy else 0.0 for row in pair)
    return many - few


def _changed(first: Row, last: Row, verdict: Verdict) -> Sentence:
    gap = _change((first, last))
    amount = fact("accuracy", gap, how="difference", runs=last.runs, against=first.runs,
                  text=points(gap))  # fmt: skip
    verb = "changes" if not verdict.apart else "falls" if gap < 0 else "rises"
    return say(
        "{kind} {verb} by {gap}, from {start} with {few} to {end} with {many}{hedge}",
        kind=_kind(first, last), verb=verb, gap=amount, few=first.workers, many=last.workers,
        hedge=verdict.brief(),
        start=stated("accuracy", first.runs, lambda v: percent(v, 2)),
        end=stated("accuracy", last.runs, lambda v: percent(v, 2)),
    )  # fmt: skip


def _kind(first: Row, last: Row) -> str:
    """Name what two rows have in common: the label, or the strategy where the masters differ."""
    return first.label if first.label == last.label else first.group.strategy


def _diverged(summary: Summary) -> Iterable[Sentence]:
    """Count the asynchronous runs whose loss was no longer finite."""
    runs = [
        run
        for run in summary.failed
        if run.strategy in LATE and re.search(r"loss is (nan|inf|-inf)", run.error)
    ]
    if not runs:
        return
    counted = fact(
        "diverged runs", len(runs), how="count", runs=runs, text=plural(len(runs), "run")
    )
    cases = [f"{run.strategy} with {plural(run.workers, 'worker')}, learning rate {_rate(run)}"
             for run in runs]  # fmt: skip
    yield say("{count} diverged: {cases}.", count=counted,
              cases=listed(list(dict.fromkeys(cases))[:4]))  # fmt: skip


def _rate(run: Run) -> str:
    found = middle("learning rate", [run])
    return "unknown" if found is None else f"{found:g}"
