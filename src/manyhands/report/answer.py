"""The answer: which configuration to use and what it gains, in one or two sentences."""

from __future__ import annotations

from manyhands.report.plots import name
from manyhands.report.tables import Row, Summary
from manyhands.report.wording import capital, join, percent, plural, points, seconds

_ROBBED = 0.15  # so much of its computing without a core is more than a quiet machine takes


def answer(summary: Summary) -> tuple[str, ...]:
    """Return the headline sentences; they say no more than the records do."""
    if not summary.rows:
        return ("No run finished, so there is nothing to compare.",)
    if summary.best is None:
        return _without_best(summary)
    best = summary.best
    sentences = (
        _headline(summary, best),
        *doubts(summary),
        _lead(summary, best),
        _caveat(summary, best),
    )
    return tuple(s for s in sentences if s)


def doubts(summary: Summary) -> tuple[str, ...]:
    """Return why the times should not be relied on; the report and `compare` say the same."""
    best = summary.best
    found = (_doubt(best) if best else "", _robbed(summary))
    return tuple(sentence for sentence in found if sentence)


def _without_best(summary: Summary) -> tuple[str, ...]:
    row = summary.rows[0]
    if len(summary.rows) == 1:
        return (f"{capital(name(summary, row))} trained in {_time(row)}{_reached(row)}.",)
    last = summary.rows[-1]
    row = summary.of(last.group)[0]
    if row is last:
        return (f"{capital(name(summary, row))} trained in {_time(row)}{_reached(row)}.",)
    along = summary.layout.x.replace("_", " ")
    of = f", {last.label}" if len(summary.groups) > 1 else ""
    return (
        f"From {along} {row.x:g} to {last.x:g} the training time{of} goes from {_time(row)} to "
        f"{_time(last)}.",
    )


def _headline(summary: Summary, best: Row) -> str:
    who = name(summary, best)
    if best.group.strategy == "sequential":
        return (
            f"One worker is best here: the sequential run took {_time(best)}{_reached(best)}, and "
            "no other configuration gained on it by the rule below."
        )
    gain = ""
    if best.shown_speedup is not None and not (best.speedup is None and best.workers == 1):
        against = (
            "the sequential run" if best.speedup is not None else f"{best.label} with 1 worker"
        )
        pace = best.shown_speedup
        gain = (
            f", {pace:.1f} times as fast as {against}"
            if pace >= 1.05
            else f", no faster than {against} ({pace:.2f} times as fast)"
        )
    if summary.scaling == "weak" and best.rate is not None:
        return (
            f"{capital(who)} gets through most: {best.rate:,.0f} examples per second{gain}"
            f"{_reached(best)}."
        )
    return f"{capital(who)} is best here: {_time(best)} of training{gain}{_reached(best)}."


def _doubt(best: Row) -> str:
    """Say so if the speed-up is more than so many workers can give."""
    if not best.implausible:
        return ""
    return (
        f"That is more than {plural(best.workers, 'worker')} can give: what it is measured against "
        "was slowed by something else, other work on the machine or threads that wait for each "
        "other. Compare again with --threads 1 on a quiet machine before you rely on it."
    )


def _robbed(summary: Summary) -> str:
    """Say so if other programs had the cores while runs were timed."""
    runs = [run for row in summary.rows for run in row.runs]
    robbed = [run.robbed for run in runs if run.robbed > _ROBBED]
    if not robbed:
        return ""
    return (
        f"In {len(robbed)} of {plural(len(runs), 'run')} a worker was without a core for up to "
        f"{percent(max(robbed))} of the time in which it computed, though there were enough cores: "
        "other programs ran beside it. Times and speed-ups of such runs say little."
    )


def _lead(summary: Summary, best: Row) -> str:
    """Say so if the next best is as fast, as far as the repeats can tell."""
    if summary.scaling == "weak" or summary.target_given or best.seconds is None:
        return ""
    near = [
        row
        for row in summary.rows
        if row is not best and row.seconds and row.seconds.apart(best.seconds) is False
    ]
    if not near:
        return ""
    names = join([name(summary, row) for row in near[:3]])
    return f"As far as the repeats can tell, {names} {'is' if len(near) == 1 else 'are'} as fast."


def _caveat(summary: Summary, best: Row) -> str:
    rows = [row for row in summary.rows if row.accuracy]
    if not rows or best.accuracy is None:
        return ""
    top = max(rows, key=lambda row: row.accuracy.median if row.accuracy else 0)
    assert top.accuracy is not None
    gap = top.accuracy.median - best.accuracy.median
    if top is best or gap <= 0:
        return "None was more accurate." if len(rows) > 1 else ""
    apart = top.accuracy.apart(best.accuracy)
    known = {
        None: ", and one repeat does not tell how much of that is chance",
        False: ", which is within the spread of the repeats",
        True: ", which is more than the repeats differ",
    }[apart]
    return f"The most accurate, {name(summary, top)}, is {points(gap)} above{known}."


def _time(row: Row) -> str:
    return seconds(row.seconds.median if row.seconds else None)


def _reached(row: Row) -> str:
    if row.accuracy is not None:
        return f" at {percent(row.accuracy.median, 2)} accuracy"
    metric = row.runs[0].metric
    return f" at {metric} {row.score.median:.4g}" if metric and row.score else ""
