"""What the runs say together: medians over repeats, speed-ups, and the best configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from manyhands.report.analysis import disturbance
from manyhands.report.analysis.best_configuration import choose, with_unlearned
from manyhands.report.analysis.rounds import ordered
from manyhands.report.analysis.run_facts import PHASES, share
from manyhands.report.analysis.run_groups import Group, layout
from manyhands.report.analysis.scaling_laws import Fit, fit
from manyhands.report.analysis.speedup_reference import with_speedups
from manyhands.report.analysis.spread import median, spread
from manyhands.report.analysis.summary import AMOUNT, Choice, Row, Summary
from manyhands.report.records.runs import Loaded, Run


def summarise(loaded: Loaded) -> Summary:
    """Aggregate the finished runs; failed ones are kept apart, with what they said."""
    good = disturbance.marked([run for run in loaded.runs if _usable(run)])
    failed = tuple(run for run in loaded.runs if not _usable(run))
    arranged = layout(good)
    rows = [
        _row(group, x, found)
        for group, members in arranged.members.items()
        for x, found in sorted(_by(members, arranged.position).items())
    ]
    by_workers = arranged.x == "workers"
    rows = [replace(row, scaling=_scaling(row.group.source, rows, by_workers)) for row in rows]
    rows = [replace(row, uneven=_uneven(row, rows)) for row in rows]
    rows = with_unlearned(rows)
    metrics = {run.metric for row in rows for run in row.runs}
    metric = metrics.pop() if len(metrics) == 1 else ""
    target, given = _target(rows)
    rows = with_speedups(rows, by_workers)
    rows = [_with_target(row, target, given) for row in rows]
    rows.sort(key=_order(rows))
    computers = {run.computer for row in rows for run in row.runs} - {""}
    comparable = arranged.x not in AMOUNT and not _inputs(rows) and len(computers) < 2
    comparable = comparable and (_all_evaluated(rows) or not _amounts(rows))
    choice = choose(rows, _common(rows), target if given else None) if comparable else None
    rows, choice = _marked(rows, choice)
    fits = {g: f for g in arranged.members if (f := _fit([r for r in rows if r.group is g]))}
    found = Summary(
        loaded=loaded,
        layout=arranged,
        rows=tuple(rows),
        failed=failed,
        scaling=_common(rows),
        target=target,
        target_given=given,
        metric=metric,
        higher=all(run.higher for row in rows for run in row.runs),
        choice=choice,
        fits=fits if by_workers else {},
    )
    return found if found.tasks == 1 else _uncompared(found)


def _uncompared(summary: Summary) -> Summary:
    """Return the summary of several tasks: none leads, and no target is derived from all."""
    given = {run.target for row in summary.rows for run in row.runs}
    target = summary.target if summary.target_given and len(given) == 1 else None
    rows = [replace(row, leads=False, best=False, tied=False) for row in summary.rows]
    if target is None:
        rows = [replace(row, to_target=None, arrivals=(), reached=0) for row in rows]
    return replace(summary, rows=tuple(rows), choice=None, target=target)


def _usable(run: Run) -> bool:
    return run.finished and run.seconds is not None and run.seconds > 0


def _order(rows: Sequence[Row]) -> Callable[[Row], tuple[int, int]]:
    """Keep sources and strategies together, in the order they came; the sequential one first."""
    sources = list(dict.fromkeys(row.group.source for row in rows))
    names = list(dict.fromkeys(["sequential", *(row.group.strategy for row in rows)]))
    return lambda row: (sources.index(row.group.source), names.index(row.group.strategy))


def _by(runs: Iterable[Run], key: Callable[[Run], float]) -> dict[float, list[Run]]:
    found: dict[float, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def _row(group: Group, x: float, runs: Sequence[Run]) -> Row:
    return Row(
        group=group,
        x=x,
        workers=runs[0].workers,
        processes=max(run.processes for run in runs),
        cores=next((run.cores for run in runs if run.cores), None),
        runs=tuple(runs),
        seconds=spread(run.seconds for run in runs),
        accuracy=spread(run.accuracy for run in runs),
        score=spread(run.score for run in runs),
        loss=spread(run.loss for run in runs),
        examples=median(run.examples for run in runs),
        startup=median(run.startup for run in runs),
        evaluation=median(run.evaluation for run in runs),
        callbacks=median(run.callbacks for run in runs),
        bytes=median(run.bytes for run in runs),
        messages=median(run.messages for run in runs),
        shares={p: found.median for p in PHASES if (found := share(runs, p))},
    )


def _all_evaluated(rows: Sequence[Row]) -> bool:
    """Say whether all are judged, so that one that has done less is known to be worse."""
    return all(row.accuracy or row.score for row in rows)


def _amounts(rows: Sequence[Row]) -> bool:
    """Say whether some were to do more than others, but for what grows with the workers."""
    fields = [f for f in AMOUNT if f != "limit" or _common(rows) == "strong"]
    configs = [row.runs[0].config for row in rows]
    return any(len({config.get(field) for config in configs}) > 1 for field in fields)


def _inputs(rows: Sequence[Row]) -> bool:
    """Say whether some were given less data, or less noise, than others: that is no merit."""
    runs = [row.runs[0] for row in rows]
    limits = {run.config.get("limit") for run in runs}
    noises = {
        (run.config.get("epsilon"), run.config.get("noise_multiplier")) if run.privacy else None
        for run in runs
    }
    return (_common(rows) == "strong" and len(limits) > 1) or len(noises) > 1


def _scaling(source: str, everything: Sequence[Row], by_workers: bool) -> str:
    """Return "weak" if the records say so, or if the work grew in step with the workers."""
    rows = [row for row in everything if row.group.source == source]
    stated = {run.scaling for row in rows for run in row.runs if run.scaling}
    if stated or not by_workers:
        return "weak" if stated == {"weak"} else "strong"
    groups = {row.group for row in rows}
    grown = [_grows([r for r in rows if r.group is group]) for group in groups]
    known = [g for g in grown if g is not None]
    return "weak" if known and all(known) else "strong"


def _uneven(row: Row, rows: Sequence[Row]) -> bool:
    """Say whether `max_steps` ended runs after different numbers of examples.

    A step of `server` or `hogwild` is a batch, and one of `sync` a share of it.
    """
    source, most = row.group.source, row.runs[0].config.get("max_steps")
    if not most:
        return False
    like = [r for r in rows if r.group.source == source]
    capped = [run for r in like for run in r.runs if run.config.get("max_steps") == most]
    return not _same_examples(capped)


def _common(rows: Sequence[Row]) -> str:
    return "weak" if {row.scaling for row in rows} == {"weak"} else "strong"


def _grows(rows: Sequence[Row]) -> bool | None:
    pairs = [(row.workers, row.examples) for row in rows if row.examples]
    if len({p for p, _ in pairs}) < 2:
        return None
    ratios = [examples / workers for workers, examples in pairs]
    return max(ratios) < 1.1 * min(ratios)


def _marked(rows: Sequence[Row], choice: Choice | None) -> tuple[list[Row], Choice | None]:
    """Mark the row that leads, the one that is best, or those that are tied, in rows and choice."""
    if choice is None:
        return list(rows), None
    tied = {id(row) for row in (choice.leader, *choice.overlapping)} if choice.tied else set()

    def mark(row: Row) -> Row:
        leads = row is choice.leader and choice.learned
        best = row is choice.leader and choice.supported
        return replace(row, leads=leads, best=best, tied=choice.learned and id(row) in tied)

    marked = {id(row): mark(row) for row in rows}
    return [*marked.values()], replace(
        choice,
        leader=marked[id(choice.leader)],
        candidates=tuple(marked[id(row)] for row in choice.candidates),
        rivals=tuple(marked[id(row)] for row in choice.rivals),
        overlapping=tuple(marked[id(row)] for row in choice.overlapping),
    )


def _target(rows: Sequence[Row]) -> tuple[float | None, bool]:
    """Return the target accuracy: the one asked for, or one that most configurations reach.

    Without one asked for it is the highest half percent that every repeat of at least half of the
    configurations reached.
    """
    given = {run.target for row in rows for run in row.runs if run.target is not None}
    if given:
        return max(given), True
    if _inputs(rows):
        return None, False
    floors = sorted(row.accuracy.low for row in rows if row.accuracy)
    if len(floors) < 2:
        return None, False
    reached = math.floor(200 * floors[len(floors) // 2] + 1e-9) / 200
    return (reached, False) if reached > 0 else (None, False)


def _with_target(row: Row, target: float | None, given: bool) -> Row:
    if target is None or row.overran:
        return row
    times = [_first(run, target, given) for run in ordered(row.runs)]
    known = tuple(t for t in times if t is not None)
    arrived = median(known) if len(known) == len(times) else None
    return replace(row, to_target=arrived, arrivals=known, reached=len(known))


def _first(run: Run, target: float, given: bool) -> float | None:
    """Return when the run first had that accuracy; looked at only when it was evaluated."""
    if given and run.target == target and run.seconds_to_target is not None:
        return run.seconds_to_target
    for epoch in run.epochs:
        if epoch.accuracy is not None and epoch.accuracy >= target:
            return epoch.seconds
    return run.seconds if run.accuracy is not None and run.accuracy >= target else None


def _same_work(runs: Sequence[Run]) -> bool:
    """Say whether all runs trained on as many examples, in updates of as many."""
    updates = {run.update for run in runs if run.update}
    return len(updates) < 2 and _same_examples(runs)


def _same_examples(runs: Sequence[Run]) -> bool:
    examples = [run.examples for run in runs if run.examples]
    return not examples or max(examples) <= 1.05 * min(examples)


def _fit(rows: Sequence[Row]) -> Fit | None:
    """Fit the law of a curve; none where reference, work or the workers' speeds differ."""
    shown = [row for row in rows if row.shown_speedup is not None]
    if len({tuple(run.where for run in row.reference) for row in shown}) > 1:
        return None
    law = "Gustafson" if rows[0].scaling == "weak" else "Amdahl"
    runs = [run for row in shown for run in (*row.runs, *row.reference)]
    if any(run.config.get("slow") for run in runs) or (law == "Amdahl" and not _same_work(runs)):
        return None
    extra = max((row.processes - row.workers for row in rows), default=0)
    cores = max((row.cores for row in rows if row.cores), default=None)
    known = [(float(row.workers), row.ranged_speedup) for row in shown if row.ranged_speedup]
    return fit(law, known, max(cores - extra, 1) if cores else None)
