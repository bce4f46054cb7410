"""Why it is as it is, from the phases that were measured, and what would help."""

from __future__ import annotations

from statistics import fmean

from manyhands.report.load import Run
from manyhands.report.plots import middle, name
from manyhands.report.tables import Row, Summary
from manyhands.report.values import number
from manyhands.report.wording import join, percent, plural, seconds

NOTABLE = 0.1
UNEVEN = 1.05


def lost(row: Row) -> str:
    """Say which part of the workers' time was not computing; nothing if it was not measured."""
    wait, communicate = row.shares.get("wait"), row.shares.get("communicate")
    if wait is None or communicate is None or row.workers < 2:
        return ""
    return (
        f"{percent(communicate)} of the workers' time is communication and {percent(wait)} waiting"
    )


def why_not_more(row: Row, following: Row) -> str:
    """Say why `following`, with more workers than `row`, is no faster."""
    if following.crowded and not row.crowded:
        return (
            f"with {plural(following.workers, 'worker')} there are {following.processes} processes "
            f"for {plural(following.cores or 0, 'core')}, and they take turns"
        )
    wait, communicate = (following.shares.get(p, 0.0) for p in ("wait", "communicate"))
    if wait + communicate < NOTABLE:
        return ""
    most, share = ("waiting", wait) if wait > communicate else ("communication", communicate)
    return f"with {plural(following.workers, 'worker')} {most} takes {percent(share)} of the time"


def crowding(summary: Summary) -> str:
    """Say which configurations had more processes than cores."""
    crowded = [row for row in summary.rows if row.crowded]
    if not crowded:
        return ""
    cores = sorted({row.cores for row in crowded if row.cores})
    counts = sorted({row.processes for row in crowded})
    return (
        f"The machine has {join([str(c) for c in cores])} cores: runs with "
        f"{join([str(c) for c in counts])} processes share them, and say little about scaling."
    )


def threads(summary: Summary) -> str:
    """Say so where workers had several threads, or not all the same number of them."""
    pairs = {(row.workers, t) for row in summary.rows if (t := _threads(row))}
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = join([str(count) for count in sorted({t for _, t in pairs})])
        return f"Workers have {counts} threads, as the configurations say."
    if not found or set(found.values()) == {1}:
        return ""
    if len(set(found.values())) == 1:
        return f"Each worker has {plural(next(iter(found.values())), 'thread')}."
    few, many = min(found), max(found)
    return (
        f"Threads per worker differ: {plural(few, 'worker')} had {found[few]}, "
        f"{plural(many, 'worker')} {found[many]} each, so that speed-up is not against one core."
    )


def _threads(row: Row) -> int | None:
    counted = number(row.runs[0].machine, "threads_per_worker")
    return int(counted) if counted else None


def waiting(summary: Summary) -> list[str]:
    """Say who waits for whom, in the widest configuration of every group."""
    said = []
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.workers > 1 and row.shares]
        if not rows:
            continue
        fitting = [row for row in rows if not row.crowded] or rows
        row = fitting[-1]
        words = f"{name(summary, row)}: {lost(row)}"
        slowest = _slowest(middle(row))
        if slowest and row.shares.get("wait", 0) > 0.02:
            words += f"; {slowest}"
        said.append(words + ".")
    return said[:6] + _masters(summary)


def _slowest(run: Run) -> str:
    """Say whom the others wait for, if one worker computes clearly longer than the rest."""
    team = [(p.compute, p) for p in run.team if p.trains and p.compute is not None]
    if len(team) < 2:
        return ""
    longest, who = max(team, key=lambda pair: pair[0])
    others = [pair for pair in team if pair[1] is not who]
    usual = fmean(compute for compute, _ in others)
    waits = [p.wait for _, p in others if p.wait is not None]
    if usual <= 0 or longest < UNEVEN * usual or not waits:
        return "no worker computes clearly longer than the others"
    return (
        f"worker {who.rank} computes longest ({seconds(longest)}, the others {seconds(usual)} on "
        f"average), and the others wait {seconds(fmean(waits))} on average"
    )


def _masters(summary: Summary) -> list[str]:
    """Say how busy the processes that compute no gradients are."""
    idle = {}
    for row in summary.rows:
        run = middle(row)
        parts = [(p.wait or 0) / run.seconds for p in run.team if run.seconds and not p.trains]
        if parts:
            idle[name(summary, row)] = fmean(parts)
    if not idle:
        return []
    least, most = (f(idle, key=lambda who: idle[who]) for f in (min, max))
    if percent(idle[least]) == percent(idle[most]):
        return [f"The masters are idle {percent(idle[most])} of the time."]
    return [
        f"The masters are idle between {percent(idle[least])} ({least}) and {percent(idle[most])} "
        f"({most}) of the time."
    ]


def _could_balance(run: Run) -> bool:
    """Say whether parts that follow the workers' speeds are one option away, and not refused.

    Private runs, where they are, never get here: how long their workers waited is not read.
    """
    given = run.config
    equal = given.get("balance") == "none" and given.get("partition") == "balanced"
    fixed = given.get("shares") or given.get("on_failure") == "continue"
    return run.strategy == "sync" and equal and not fixed


def help_wanted(summary: Summary) -> list[str]:
    """Say what would help, from what was measured; nothing where nothing stands out."""
    said = []
    crowded = [row for row in summary.rows if row.crowded]
    if crowded:
        cores = min(row.cores for row in crowded if row.cores)
        said.append(f"use no more processes than the {plural(cores, 'core')} there are")
    fitting = [row for row in summary.rows if row.workers > 1 and not row.crowded]
    talking = [r for r in fitting if r.shares.get("communicate", 0) > 2 * NOTABLE]
    if talking:
        most = max(talking, key=lambda r: r.shares["communicate"])
        said.append(
            f"exchange less ({name(summary, most)} spends {percent(most.shares['communicate'])} of "
            "its time on it): a larger batch, a cheaper all-reduce, or averaging less often"
        )
    idle = [r for r in fitting if r.shares.get("wait", 0) > 2 * NOTABLE]
    if idle:
        most = max(idle, key=lambda r: r.shares["wait"])
        how = " (--balance speed)" if _could_balance(middle(most)) else ""
        said.append(
            f"wait less ({name(summary, most)} spends {percent(most.shares['wait'])} of its time "
            f"on it): give slow workers less to do{how}, or use a strategy that does not wait"
        )
    return [f"What would help here: {'; '.join(said)}."] if said else []


def comment(summary: Summary) -> list[str]:
    """Comment on where the time goes."""
    return waiting(summary) + help_wanted(summary)
