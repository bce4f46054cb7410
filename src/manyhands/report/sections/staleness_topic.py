"""How late gradients are, and what the learning rate and the workers make of it: a topic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.best_configuration import kept
from manyhands.report.analysis.run_facts import median, stated
from manyhands.report.analysis.significance import Verdict, compare
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import plural, points
from manyhands.report.wording.sentences import Fact, Name, Sentence, fact, listed, say

LATE = ("server", "hogwild")
MOST = 3  # changes of accuracy in one sentence


def sentences(summary: Summary) -> Iterable[Sentence]:
    """Say how late gradients were, what the learning rate makes of it, and what accuracy does."""
    rows = [
        row
        for row in summary.rows
        if row.group.strategy in LATE and median("mean staleness", row.runs) is not None
    ]
    rows = [r for r in rows if r.workers > 1 and not _remedied(r.runs[0])]
    if rows:
        yield _late(rows)
        yield from _product(summary, rows)
        yield from _trends(summary, rows)
    yield from _diverged(summary)


def _late(rows: Sequence[Row]) -> Sentence:
    by_workers: dict[int, list[Run]] = {}
    for row in sorted(rows, key=lambda row: row.workers):
        by_workers.setdefault(row.workers, []).extend(row.runs)
    each = [
        say("{late} ({workers})", late=stated("mean staleness", runs, lambda v: f"{v:.2f}"),
            workers=fact("workers", workers, runs=runs, text=plural(workers, "worker")))
        for workers, runs in by_workers.items()
    ]  # fmt: skip
    ideal = [
        fact("workers - 1", workers - 1, how="derived", runs=runs, text=str(workers - 1))
        for workers, runs in by_workers.items()
    ]
    return say(
        "When a gradient is applied, other workers have made {each} updates since its parameters "
        "were read. Workers of equal speed would make {ideal}.",
        each=listed(each), ideal=listed(ideal),
    )  # fmt: skip


def _remedied(run: Run) -> bool:
    """Whether the run limited staleness or divided its rates by it: not what happens without."""
    return run.config.get("staleness") is not None or bool(run.config.get("staleness_aware"))


def _rate(runs: Sequence[Run]) -> float | None:
    return median("learning rate", runs)


def _product(summary: Summary, rows: Sequence[Row]) -> Iterable[Sentence]:
    """State the highest η τ where every repeat learned, and the least where some did not."""
    known = [
        (rate * late, row)
        for row in rows
        if (rate := _rate(row.runs)) is not None
        and (late := median("mean staleness", row.runs)) is not None
    ]
    gone = [
        (r.source, r.strategy, r.workers, _rate([r]))
        for r in _infinite(summary)
        if not _remedied(r)
    ]
    fine = [
        (value, row)
        for value, row in known
        if row.accuracy and kept(row, summary.rows) and not row.unlearned
        and (row.group.source, row.group.strategy, row.workers, _rate(row.runs)) not in gone
    ]  # fmt: skip
    lost = [pair for pair in known if pair[1].unlearned]

    def product(pair: tuple[float, Row]) -> Sentence:
        value = fact("learning rate × mean staleness", pair[0], how="derived", runs=pair[1].runs,
                     text=f"{pair[0]:.2g}")  # fmt: skip
        return say("{value} ({who})", value=value, who=facts.who(summary, pair[1]))

    if fine:
        yield say(
            "The learning rate{scaled} times the mean staleness, η τ, is at most {most} where "
            "every repeat got more than half as far from guessing as the best run.",
            most=product(max(fine, key=lambda pair: pair[0])),
            scaled=_scaled(known),
        )
    if lost:
        yield say(
            "Where repeats learned little, η τ is at least {least}.",
            least=product(min(lost, key=lambda pair: pair[0])),
        )


def _scaled(known: Sequence[tuple[float, Row]]) -> str:
    """Say so where the rate is not the one that was given: that divided or multiplied."""
    kinds = {str(run.config.get("lr_scaling")) for _, row in known for run in row.runs}
    words = {
        "inverse": "divided by",
        "linear": "multiplied by",
        "sqrt": "multiplied by the root of",
    }
    told = [f"{words[kind]} the workers" for kind in sorted(kinds & set(words))]
    where = " where runs are set to that" if len(kinds) > 1 else ""
    return f" ({' or '.join(told)}{where})" if told else ""


def _trends(summary: Summary, late: Sequence[Row]) -> Iterable[Sentence]:
    """Compare the accuracy of the fewest and the most workers, asynchronous and synchronous."""
    for source in dict.fromkeys(row.group.source for row in late):
        mine = [row for row in late if row.group.source == source and row.accuracy]
        mine = [row for row in mine if not row.overran]
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
            _changed(few, many, verdict)
            for few, many in ends
            if (verdict := compare(few, many, "accuracy", len(ends))).apart
            or verdict.large
            or few.unlearned
            or many.unlearned
        ]
        if parts:
            several = len(summary.loaded.sources) > 1
            yield say(
                "Accuracy from fewer to more workers{where}: {parts}.",
                where=say(" of {source}", source=facts.source(ends[0][0])) if several else "",
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
            and summary.alike(first, row, but=("masters",))
        ]
        ordered = [row for row in ordered if row not in kin]
        if first.workers < kin[-1].workers:
            pairs.append((first, kin[-1]))
    return sorted(pairs, key=lambda pair: _change(*pair))


def _change(first: Row, last: Row) -> float:
    few, many = (row.accuracy.median if row.accuracy else 0.0 for row in (first, last))
    return many - few


def _changed(first: Row, last: Row, verdict: Verdict) -> Sentence:
    if first.unlearned or last.unlearned:
        return say(
            "{kind} has {start} with {few} and {end} with {many}", kind=_kind(first, last),
            start=facts.accuracy(first), few=facts.workers(first, ""),
            end=facts.accuracy(last), many=facts.workers(last, ""),
        )  # fmt: skip
    gap = _change(first, last)
    amount = fact("accuracy", gap, how="difference", runs=last.runs, against=first.runs,
                  text=points(gap))  # fmt: skip
    return say(
        "{kind} {verb} by {gap}, from {start} with {few} to {end} with {many}{hedge}",
        kind=_kind(first, last),
        verb="falls" if gap < 0 else "rises", gap=amount,
        start=facts.accuracy(first), few=facts.workers(first, ""),
        end=facts.accuracy(last), many=facts.workers(last, ""), hedge=verdict.brief(),
    )  # fmt: skip


def _kind(first: Row, last: Row) -> Name:
    """Name what two rows have in common: the label, or the strategy where the masters differ."""
    return facts.label(first) if first.label == last.label else Name(first.group.strategy)


def title(summary: Summary) -> str:
    """Return the topic's title: training diverges only where some run did."""
    lost = any(row.unlearned for row in summary.rows if row.group.strategy in LATE)
    if lost or _infinite(summary):
        return "Why asynchronous training diverges with many workers"
    return "How late gradients are"


def _infinite(summary: Summary) -> list[Run]:
    """Return the asynchronous runs whose loss was no longer finite."""
    return [
        run
        for run in summary.failed
        if run.strategy in LATE and re.search(r"loss is (nan|inf|-inf)", run.error)
    ]


def _diverged(summary: Summary) -> Iterable[Sentence]:
    """Count the asynchronous runs whose loss was no longer finite."""
    runs = _infinite(summary)
    if not runs:
        return
    cases = {(run.strategy, run.workers, _rate([run])): run for run in runs}
    yield say(
        "{count} diverged: {cases}.", count=facts.count(runs),
        cases=listed([_case(run) for run in list(cases.values())[:4]]),
    )  # fmt: skip


def _case(run: Run) -> Sentence:
    rate: Fact | str = stated("learning rate", [run], lambda v: f"{v:g}") or "unknown"
    limit = stated("limit of staleness", [run], lambda v: f"{v:g}")
    return say(
        "{strategy} with {workers}, learning rate {rate}{limit}", strategy=run.strategy, rate=rate,
        limit=say(", staleness at most {limit}", limit=limit) if limit else "",
        workers=fact("workers", run.workers, runs=[run], text=plural(run.workers, "worker")),
    )  # fmt: skip
