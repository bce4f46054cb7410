"""What the runs say together: medians over repeats, speed-ups, and the best configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from manyhands.report.groups import IGNORED, Group, layout
from manyhands.report.load import Loaded, Run
from manyhands.report.scaling import Fit, fit
from manyhands.report.tables import AMOUNT, Row, Summary, median, spread
from manyhands.report.values import text
from manyhands.report.wording import percent

# Options that make it another task: a sequential run that differs here is no baseline.
TASK = (
    "model", "data", "epochs", "limit", "max_steps", "dtype",
    "optimizer", "lr", "momentum", "weight_decay",
)  # fmt: skip
PHASES = ("compute", "update", "communicate", "wait")
TOLERANCE = 0.01  # how far below the best a model is still as good


def summarise(loaded: Loaded) -> Summary:
    """Aggregate the finished runs; failed ones are kept apart, with what they said."""
    good = [run for run in loaded.runs if _usable(run)]
    failed = tuple(run for run in loaded.runs if not _usable(run))
    arranged = layout(good)
    rows = [
        _row(group, x, found)
        for group, members in arranged.members.items()
        for x, found in sorted(_by(members, arranged.position).items())
    ]
    by_workers = arranged.x == "workers"
    rows = [replace(row, scaling=_scaling(row.group.source, rows, by_workers)) for row in rows]
    metrics = {run.metric for row in rows for run in row.runs}
    metric = metrics.pop() if len(metrics) == 1 else ""
    target, given = _target(rows)
    alone = {row.group: row for row in rows if by_workers and row.workers == 1}
    rows = [_with_speedup(row, rows, alone.get(row.group)) for row in rows]
    rows = [_with_target(row, target, given) for row in rows]
    rows.sort(key=_order(rows))
    comparable = arranged.x not in AMOUNT and (_judged(rows) or not _amounts(rows))
    best, rule = _best(rows, target if given else None) if comparable else (None, "")
    rows = [replace(row, best=row is best) for row in rows]
    fits = {g: f for g in arranged.members if (f := _fit([r for r in rows if r.group is g]))}
    return Summary(
        loaded=loaded,
        layout=arranged,
        rows=tuple(rows),
        failed=failed,
        scaling=_common(rows),
        target=target,
        target_given=given,
        metric=metric,
        higher=all(run.higher for row in rows for run in row.runs),
        best=next((row for row in rows if row.best), None),
        rule=rule,
        fits=fits if by_workers else {},
    )


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
        shares=_shares(runs),
    )


def _shares(runs: Sequence[Run]) -> dict[str, float]:
    """Return which part of the training time the workers spent in each phase, over all repeats."""
    time = math.fsum(run.seconds or 0 for run in runs for p in run.team if p.trains)
    if time <= 0:
        return {}
    return {
        phase: math.fsum(getattr(p, phase) or 0 for run in runs for p in run.team if p.trains)
        / time
        for phase in PHASES
    }


def _judged(rows: Sequence[Row]) -> bool:
    """Say whether all are judged, so that one that has done less is known to be worse."""
    return all(row.accuracy or row.score for row in rows)


def _amounts(rows: Sequence[Row]) -> bool:
    """Say whether some were to do more than others, but for what grows with the workers."""
    fields = [f for f in AMOUNT if f != "limit" or _common(rows) == "strong"]
    configs = [row.runs[0].config for row in rows]
    return any(len({config.get(field) for config in configs}) > 1 for field in fields)


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


def _common(rows: Sequence[Row]) -> str:
    return "weak" if {row.scaling for row in rows} == {"weak"} else "strong"


def _grows(rows: Sequence[Row]) -> bool | None:
    pairs = [(row.workers, row.examples) for row in rows if row.examples]
    if len({p for p, _ in pairs}) < 2:
        return None
    ratios = [examples / workers for workers, examples in pairs]
    return max(ratios) < 1.1 * min(ratios)


def _with_speedup(row: Row, rows: Sequence[Row], own: Row | None) -> Row:
    """Add the speed-up against the sequential run, and against the same with one worker."""
    return replace(row, speedup=_ratio(_baseline(row, rows), row), own_speedup=_ratio(own, row))


def _baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the sequential run of the same task on the same machine, if there is one.

    Of several it is the one that is most like it: with as many threads, and so on.
    """
    strong = row.scaling == "strong"
    fields = [f for f in TASK if strong or f not in AMOUNT]
    config, behind = row.runs[0].config, row.runs[0].update
    processor = text(row.runs[0].machine, "cpu")
    found: list[Row] = []
    for other in rows:
        if other.group.strategy != "sequential" or other.group.source != row.group.source:
            continue
        theirs = other.runs[0].config
        if strong and behind and other.runs[0].update not in (None, behind):
            continue
        if bool(other.runs[0].privacy) != bool(row.runs[0].privacy):
            continue
        if processor and text(other.runs[0].machine, "cpu") not in ("", processor):
            continue
        if all(theirs.get(f) == config.get(f) for f in fields if f in theirs and f in config):
            found.append(other)
    return max(found, key=lambda other: _likeness(row, other), default=None)


def _likeness(row: Row, other: Row) -> tuple[bool, int]:
    """Say how much the runs of two rows are alike: a worker's batch first, then the options."""
    mine, theirs = row.runs[0], other.runs[0]
    batches = [run.update / run.workers for run in (mine, theirs) if run.update]
    names = set(theirs.config) - IGNORED
    same = sum(theirs.config[name] == mine.config.get(name) for name in names)
    return row.scaling == "weak" and len(set(batches)) == 1, same


def _ratio(base: Row | None, row: Row) -> float | None:
    """Return how much faster `row` is: in time, or in examples per second where the work grew."""
    if base is None or base.seconds is None or row.seconds is None or row.seconds.median <= 0:
        return None
    if row.scaling == "weak":
        return row.rate / base.rate if row.rate and base.rate else None
    return base.seconds.median / row.seconds.median


def _target(rows: Sequence[Row]) -> tuple[float | None, bool]:
    """Return the target accuracy: the one asked for, or one that most configurations reach.

    Without one asked for it is the highest half percent that every repeat of at least half of the
    configurations reached.
    """
    given = {run.target for row in rows for run in row.runs if run.target is not None}
    if given:
        return max(given), True
    floors = sorted(row.accuracy.low for row in rows if row.accuracy)
    if len(floors) < 2:
        return None, False
    reached = math.floor(200 * floors[len(floors) // 2] + 1e-9) / 200
    return (reached, False) if reached > 0 else (None, False)


def _with_target(row: Row, target: float | None, given: bool) -> Row:
    if target is None:
        return row
    times = [_first(run, target, given) for run in row.runs]
    reached = sum(t is not None for t in times)
    return replace(row, to_target=median(times) if reached == len(times) else None, reached=reached)


def _first(run: Run, target: float, given: bool) -> float | None:
    """Return when the run first had that accuracy; looked at only when it was evaluated."""
    if given and run.target == target and run.seconds_to_target is not None:
        return run.seconds_to_target
    for epoch in run.epochs:
        if epoch.accuracy is not None and epoch.accuracy >= target:
            return epoch.seconds
    return run.seconds if run.accuracy is not None and run.accuracy >= target else None


def _best(everything: Sequence[Row], target: float | None) -> tuple[Row | None, str]:
    """Return the best configuration and the rule it was chosen by."""
    scaling = _common(everything)
    rows = [row for row in everything if row.scaling == scaling]
    if len(rows) < 2:
        return None, ""
    if target is not None:
        arrived = [row for row in rows if row.to_target is not None]
        if arrived:
            first = min(arrived, key=lambda row: row.to_target or math.inf)
            each = ", in every repeat" if max(len(row.runs) for row in rows) > 1 else ""
            return first, f"the shortest time to {percent(target, 1)} accuracy{each}"
    accuracies = [row.accuracy.median for row in rows if row.accuracy]
    fair = rows
    words = ""
    if accuracies:
        floor = max(accuracies) - TOLERANCE
        fair = [row for row in rows if row.accuracy and row.accuracy.median >= floor]
        words = " whose accuracy is at most one percentage point below the highest"
    elif scored := _fair(rows):
        fair, words = scored
    if scaling == "weak":
        return max(fair, key=lambda r: r.rate or 0), f"the most examples per second{words}"
    fastest = min(fair, key=lambda r: r.seconds.median if r.seconds else math.inf)
    return fastest, f"the shortest training time{words}"


def _fair(rows: Sequence[Row]) -> tuple[list[Row], str] | None:
    """Return what is nearly as good as the best by the one metric that all were judged by."""
    held = [(row, row.score.median) for row in rows if row.score]
    metrics = {(run.metric, run.higher) for row in rows for run in row.runs}
    if not held or len(metrics) > 1:
        return None
    metric, higher = metrics.pop()
    top = (max if higher else min)(value for _, value in held)
    fair = [row for row, value in held if abs(value - top) <= TOLERANCE * abs(top)]
    return fair, f" whose {metric} is at most one per cent from the best"


def _fit(rows: Sequence[Row]) -> Fit | None:
    law = "Gustafson" if rows[0].scaling == "weak" else "Amdahl"
    pairs = [(row.workers, row.shown_speedup) for row in rows]
    extra = max((row.processes - row.workers for row in rows), default=0)
    cores = max((row.cores for row in rows if row.cores), default=None)
    known = [(float(p), s) for p, s in pairs if s is not None]
    return fit(law, known, max(cores - extra, 1) if cores else None)
