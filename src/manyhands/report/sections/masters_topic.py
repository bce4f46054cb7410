"""Why the parameters are split over several masters, and whether one would do: a topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.run_facts import median, stated
from manyhands.report.analysis.significance import compare
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.wording.formatting import count, percent, plural, seconds
from manyhands.report.wording.sentences import Fact, Sentence, fact, say

HALF = 0.5  # of their time: workers that spend more on the exchange are held up by it
FULL = 0.8  # of its time: a master that is busy for longer is the limit


def sentences(summary: Summary) -> Iterable[Sentence]:
    """Say how busy the masters were, and whether one would have been enough."""
    rows = [row for row in summary.rows if median("busiest master", row.runs) is not None]
    if not rows:
        return
    rows = [row for row in rows if row.workers > 1] or rows
    roomy = [row for row in rows if not row.crowded] or rows
    row = max(roomy, key=lambda one: median("busiest master", one.runs) or 0)
    yield say(
        "The masters' load is highest with {workers} and {masters}: a master needs {each} for a "
        "push, and the busiest works {busy} of the training time{crowded}.",
        workers=facts.workers(row), masters=_masters(row),
        each=stated("seconds per push", row.runs, seconds),
        busy=stated("busiest master", row.runs, lambda v: percent(v, 1)),
        crowded=_crowding(row),
    )  # fmt: skip
    yield from _enough(row)
    yield from _compared(summary, rows)


def title(summary: Summary) -> str:
    """Return the topic's title: no parameters are split where there is one master."""
    counts = {_count(row) for row in summary.rows} - {0.0}
    if counts == {1.0}:
        return "How busy the master is"
    return "Why the parameters are split over several masters"


def _count(row: Row) -> float:
    return median("masters", row.runs) or 0.0


def _crowding(row: Row) -> Sentence:
    if not row.crowded:
        return say("")
    processes, cores = facts.processes(row), facts.cores(row)
    return say(", though {processes} share {cores}", processes=processes, cores=cores)


def _masters(row: Row) -> Fact | None:
    return stated("masters", row.runs, lambda v: plural(v, "master"))


def _enough(row: Row) -> Iterable[Sentence]:
    load = median("masters together", row.runs)
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
    if row.crowded or sum(row.shares.get(p, 0.0) for p in ("wait", "communicate")) > HALF:
        return  # workers that take turns, or wait for idle masters: the load does not say
    alone = _count(row) == 1
    full = fact("workers / masters together", row.workers / load, how="derived", runs=row.runs,
                text=count(row.workers / load))  # fmt: skip
    yield say(
        "{who} {part} of one process's time, so one master {is} enough here; at this pace "
        "about {full} workers would keep one busy all the time.",
        who="The master works" if alone else "Together the masters work",
        **{"is": "is" if alone else "would have been"},
        part=part, full=full,
    )  # fmt: skip


def _compared(summary: Summary, rows: Sequence[Row]) -> Iterable[Sentence]:
    """Compare different numbers of masters for the same workers, where both were run."""
    ordered = sorted((row for row in rows if row.seconds), key=_count)
    pairs = [
        (few, many)
        for i, few in enumerate(ordered)
        for many in ordered[i + 1 :]
        if few.workers == many.workers
        and _count(few) < _count(many)
        and summary.alike(few, many, but=("masters",))
    ]
    if not pairs and len({_count(row) for row in rows}) > 1:
        yield say(
            "No number of workers was run with different numbers of masters, so these runs do not "
            "show what more masters bring in time."
        )
    if not pairs:
        return
    few, many = max(pairs, key=lambda pair: (pair[0].workers, _count(pair[1])))
    yield say(
        "With {workers}, training takes {before} with {one} and {after} with {other}{hedge}.",
        workers=facts.workers(few), one=_masters(few), other=_masters(many),
        before=facts.time(few), after=facts.time(many),
        hedge=compare(few, many, "seconds").hedge(),
    )  # fmt: skip
