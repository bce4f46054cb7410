"""What the runs say about the questions that parallel training raises, one topic each.

A topic has a reason, which holds for any run (`explanations`), and what was measured here. One
whose data was not recorded is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from manyhands.report import parameter_server, volume
from manyhands.report.alike import alike
from manyhands.report.groups import Group
from manyhands.report.plots import name
from manyhands.report.quantities import middle, stated
from manyhands.report.runs import Run
from manyhands.report.scaling import Fit
from manyhands.report.sentences import Fact, Sentence, fact, listed, say
from manyhands.report.significance import Verdict, compare
from manyhands.report.tables import Row, Summary
from manyhands.report.values import number
from manyhands.report.wording import percent, plural, points, seconds

ASYNCHRONOUS = ("server", "hogwild")
CLOSE, ROUGH = 0.05, 0.15  # of the highest speed-up: a law fits, fits roughly
GUESS = 1.5  # times the accuracy of a guess: less than that is nothing learned
SAME = 0.05  # amounts of work that differ by less are the same
MOST = 3  # comparisons of one kind
SERIAL = (
    "With P workers and a part f of the work that does not shrink with P, the speed-up is "
    "1 / (f + (1 − f) / P) by Amdahl's law, where the work is the same for every P, and "
    "P − f (P − 1) by Gustafson's, where the work grows with P. The part f holds everything that "
    "more workers do not shorten: communication, waiting for the slowest worker, the fixed costs "
    "of a step, and cores that slow each other down because they share caches and memory."
)


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One question: its title, the general reason, and what these runs show."""

    title: str
    reason: str = ""
    found: tuple[Sentence, ...] = ()


def topics(summary: Summary) -> list[Topic]:
    """Return every topic that the records say something about."""
    made = [
        Topic(title="Synchronous or asynchronous", found=tuple(_compared(summary))),
        Topic(
            title="Why the parameters are split over several masters",
            reason=parameter_server.reason(summary, "masters"),
            found=tuple(parameter_server.masters(summary)),
        ),
        Topic(
            title="Why asynchronous training diverges with many workers",
            reason=parameter_server.reason(summary, "staleness"),
            found=tuple(parameter_server.staleness(summary)),
        ),
        Topic(title="How much data is sent", found=tuple(volume.sentences(summary))),
        Topic(title="Amdahl's or Gustafson's law", reason=SERIAL, found=tuple(_law(summary))),
    ]
    return [topic for topic in made if topic.found]


def _compared(summary: Summary) -> Iterable[Sentence]:
    """Compare asynchronous with synchronous training where both had as many workers."""
    pairs = [pair for kind in ASYNCHRONOUS for pair in _widest(_pairs(summary, kind))][:MOST]
    if not pairs:
        return
    for row, base in pairs:
        pace, quality = (
            compare(row, base, measure, 2 * len(pairs), summary.rows)
            for measure in ("seconds", "accuracy")
        )
        yield _pace(summary, row, base, pace)
        yield from _quality(summary, row, base, quality)
    for kind in ASYNCHRONOUS:
        yield from _each(kind, _pairs(summary, kind))
    rows = {id(row): row for pair in pairs for row in pair}.values()
    waits = [
        say("{part} with {who}", who=_who(summary, row), part=part)
        for row in rows
        if (part := _waiting(row))
    ]
    if waits:
        yield say(
            "Part of the workers' time that is communication or waiting: {each}.",
            each=listed(waits),
        )


def _pairs(summary: Summary, kind: str) -> list[tuple[Row, Row]]:
    """Return the rows of an asynchronous strategy, each with the synchronous one that is alike."""
    rows = [row for row in summary.rows if row.seconds and row.workers > 1]
    late = [r for r in rows if r.group.strategy == kind and r.runs[0].config.get("staleness") != 0]
    pairs = []
    for row in sorted(late, key=lambda row: row.workers):
        bases = [
            base
            for base in rows
            if base.group.strategy == "sync"
            and base.workers == row.workers
            and alike(summary, row, base)
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


def _widest(pairs: Sequence[tuple[Row, Row]]) -> list[tuple[Row, Row]]:
    """Return the pairs with the most workers of every source; where cores allow, uncrowded ones."""
    found = []
    for source in dict.fromkeys(row.group.source for row, _ in pairs):
        mine = [pair for pair in pairs if pair[0].group.source == source]
        roomy = [pair for pair in mine if not pair[0].crowded] or mine
        most = max(row.workers for row, _ in roomy)
        found += [pair for pair in roomy if pair[0].workers == most]
    return found


def _each(kind: str, pairs: Sequence[tuple[Row, Row]]) -> Iterable[Sentence]:
    """State pace and accuracy for every number of workers that both were run with."""
    pairs = [pair for pair in pairs if pair[0].group.source == pairs[0][0].group.source]
    counts = [row.workers for row, _ in pairs]
    if len(counts) < 2 or len(set(counts)) < len(counts):
        return
    parts = []
    for row, base in pairs:
        gap = _gap_of(row, base)
        words = "{pace} times as fast with {workers}" + (", {gap} {side}" if gap else "")
        side = "above" if gap and gap.value > 0 else "below"
        workers = plural(row.workers, "worker")
        parts.append(say(words, workers=workers, pace=_ratio(row, base), gap=gap, side=side))
    yield say(
        "By the number of workers, {kind} against sync, in time and in accuracy: {parts}.",
        kind=kind, parts=listed(parts, "; ", "; "),
    )  # fmt: skip


def _ratio(row: Row, base: Row) -> Fact:
    assert row.seconds
    assert base.seconds
    ratio = base.seconds.median / row.seconds.median
    return fact("seconds", ratio, how="ratio", runs=row.runs, against=base.runs,
                text=f"{ratio:.2f}")  # fmt: skip


def _gap_of(row: Row, base: Row) -> Fact | None:
    if row.accuracy is None or base.accuracy is None:
        return None
    gap = row.accuracy.median - base.accuracy.median
    return _gap("accuracy", gap, row.runs, base.runs)


def _who(summary: Summary, row: Row) -> str:
    """Name a configuration, with its place where that is not its number of workers."""
    return row.label if summary.layout.x == "workers" else name(summary, row)


def _pace(summary: Summary, row: Row, base: Row, verdict: Verdict) -> Sentence:
    times = [stated("seconds", each.runs, seconds) for each in (row, base)]
    first, second = (row, base) if _ratio(row, base).value >= 1 else (base, row)
    return say(
        "With {workers}, {who} trains in {mine} and {base} in {theirs}: {which} is {pace} times as "
        "fast{hedge}{crowded}.",
        crowded=_crowding(row, base),
        workers=plural(row.workers, "worker"),
        who=_who(summary, row), base=_who(summary, base), mine=times[0], theirs=times[1],
        pace=_ratio(first, second),
        which=_who(summary, first), hedge=verdict.hedge(),
    )  # fmt: skip


def _quality(summary: Summary, row: Row, base: Row, verdict: Verdict) -> Iterable[Sentence]:
    gap = _gap_of(row, base)
    if gap is None:
        return
    yield say(
        "Its accuracy is {mine}{guess}, against {theirs} with {base}: {gap} {side}{hedge}.",
        mine=stated("accuracy", row.runs, lambda v: percent(v, 2)),
        guess=_guessing(row),
        theirs=stated("accuracy", base.runs, lambda v: percent(v, 2)),
        base=_who(summary, base),
        gap=gap,
        side="higher" if gap.value >= 0 else "lower",
        hedge=verdict.hedge(),
    )


def _guessing(row: Row) -> str:
    """Say so where a model is hardly better than a guess among the classes."""
    classes = number(row.runs[0].data, "classes")
    low = row.accuracy is not None and classes and row.accuracy.median < GUESS / classes
    return " (hardly better than guessing: it learned nothing)" if low else ""


def _gap(what: str, gap: float, runs: Sequence[Run], against: Sequence[Run]) -> Fact:
    return fact(what, gap, how="difference", runs=runs, against=against, text=points(gap))


def _crowding(*rows: Row) -> str:
    crowded = [row for row in rows if row.crowded]
    if not crowded:
        return ""
    counts = listed([str(count) for count in sorted({row.processes for row in crowded})])
    return f"; {counts} processes share {crowded[0].cores} cores"


def _waiting(row: Row) -> Fact | None:
    return stated("communicating and waiting", row.runs, percent)


def _law(summary: Summary) -> Iterable[Sentence]:
    """Say which law applies and why, how well it fits, and what would change it."""
    fits = _chosen(summary)
    if not fits:
        return
    laws = {fit.law for _, fit in fits}
    if "Amdahl" in laws:
        yield say(
            "Amdahl's law applies{where}, since the work is the same for every number of workers "
            "(strong scaling): no number of workers brings more than 1 / f.",
            where=_where(fits, "Amdahl"),
        )
    if "Gustafson" in laws:
        yield say(
            "Gustafson's law applies{where}, since the work grows with the workers (weak scaling): "
            "the speed-up has no bound.",
            where=_where(fits, "Gustafson"),
        )
    for group, fit in fits:
        yield from _fitted(summary, group, fit)
    if "Amdahl" in laws:
        yield say(
            "What would change that: work that grows with the workers (`--scaling weak`) makes it "
            "Gustafson's law; a larger batch or a cheaper all-reduce makes f smaller."
        )


def _where(fits: Sequence[tuple[Group, Fit]], law: str) -> str:
    """Name the sources that a law is for, where there is another one as well."""
    if len({fit.law for _, fit in fits}) < 2:
        return ""
    return f" to {listed(sorted({group.source for group, fit in fits if fit.law == law}))}"


def _chosen(summary: Summary) -> list[tuple[Group, Fit]]:
    """Choose one fit of every source: with several points, of sync, the most workers, the ring."""
    best: dict[str, tuple[Group, Fit]] = {}
    for group, fit in summary.fits.items():
        held = best.get(group.source)
        if held is None or _weight(group, fit) > _weight(*held):
            best[group.source] = (group, fit)
    return list(best.values())[:MOST]


def _weight(group: Group, fit: Fit) -> tuple[bool, bool, float, bool]:
    ring = group.options.get("allreduce") == "ring"
    return fit.points > 1, group.strategy == "sync", fit.limit, ring


def _fitted(summary: Summary, group: Group, fit: Fit) -> Iterable[Sentence]:
    rows = [r for r in summary.of(group) if r.shown_speedup is not None and not r.crowded]
    runs = [run for row in rows for run in row.runs]
    serial = fact("serial fraction", fit.serial, how="fit", runs=runs, text=f"{fit.serial:.3f}")
    if fit.residual is None:
        yield say(
            "{who}: one point with several workers gives f = {serial}, and cannot test the law.",
            who=group.label, serial=serial,
        )  # fmt: skip
        return
    off = fact("root mean square error", fit.residual, how="fit", runs=runs,
               text=f"{fit.residual:.2g}")  # fmt: skip
    yield say(
        "{who} {verdict}: f = {serial}{bound}, with a root mean square error of {off}.",
        who=group.label, serial=serial, off=off, verdict=_verdict(summary, group, fit),
        bound=_bound(fit, runs),
    )  # fmt: skip
    yield from _limits(summary, rows[-1])


def _limits(summary: Summary, widest: Row) -> Iterable[Sentence]:
    """Say what keeps the widest configuration from being faster."""
    if widest.workers < 2:
        return
    limits = []
    if part := _waiting(widest):
        limits.append(say("communication and waiting take {part} of the time", part=part))
    if more := _slowed(summary, widest):
        limits.append(
            say(
                "all workers together compute {more} times as long as the sequential run", more=more
            )
        )
    if limits:
        yield say(
            "With {workers}, {limits}.",
            workers=plural(widest.workers, "worker"), limits=listed(limits),
        )  # fmt: skip


def _slowed(summary: Summary, row: Row) -> Fact | None:
    """Return how much longer all workers compute than one alone, for the same work."""
    bases = [
        base
        for base in summary.rows
        if (base.group.source, base.group.strategy) == (row.group.source, "sequential")
    ]
    if len(bases) != 1 or row.scaling != "strong":
        return None
    (base,) = bases
    alone = middle("seconds of computing", base.runs)
    ours = middle("seconds of computing", row.runs)
    if not alone or not ours or base.examples != row.examples:
        return None
    return fact("seconds of computing", ours / alone, how="ratio", runs=base.runs,
                against=row.runs, text=f"{ours / alone:.2f}")  # fmt: skip


def _verdict(summary: Summary, group: Group, fit: Fit) -> str:
    off = (fit.residual or 0) / max(row.shown_speedup or 0 for row in summary.of(group))
    if off <= CLOSE:
        return "follows the law"
    return "follows the law roughly" if off <= ROUGH else "does not follow the law"


def _bound(fit: Fit, runs: Sequence[Run]) -> Sentence | str:
    if not fit.bound or fit.serial < 0.0005:
        return ""
    most = fact("bound of the speed-up", fit.bound, how="fit", runs=runs, text=f"{fit.bound:.3g}")
    return say(", at most {most} times as fast", most=most)
