"""Why it is as it is, from the phases that were measured, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configuration_facts import who
from manyhands.report.analysis.configurations import typical_run
from manyhands.report.analysis.run_facts import PHASES, share
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.records.fields import number
from manyhands.report.records.runs import Process, Run
from manyhands.report.wording.formatting import percent, plural, some
from manyhands.report.wording.sentences import Fact, How, Sentence, capitalised, fact, listed, say

NOTABLE = 0.1
FREE = ("server", "hogwild")  # strategies that do not wait, but for evaluations
LOST = {"communicate": "communication", "wait": "waiting", "idle": "idling at the end"}
MOSTLY = 0.5  # of a loss: a cause that explains less is not named


def lost(row: Row) -> Sentence:
    """Say which part of the time was not computing; nothing if it was not measured."""
    if row.shares.get("wait") is None or row.shares.get("communicate") is None or not _several(row):
        return say("")
    found = share(row.runs, *PHASES)
    rest = 1 - found.median if found else 0.0
    other = fact("unmeasured share", rest, how="derived", runs=row.runs, text=percent(rest))
    idle = facts.idle(row, " and {idle} idle at the end, until the slowest has finished")
    return say(
        "{whose} spend {communicate} of their time communicating{sep}{wait} waiting{idle}{other}",
        idle=idle, sep=", " if idle else " and ",
        whose="workers" if row.workers > 1 else "processes",
        communicate=facts.share(row, "communicate"), wait=facts.share(row, "wait"),
        other=say("; {rest} is in no phase that is measured", rest=other) if rest > NOTABLE else "",
    )  # fmt: skip


def _several(row: Row) -> bool:
    """Say whether several processes compute: workers, stages or slices."""
    return sum(process.trains for process in row.runs[0].team) > 1


def why_not_more(row: Row, following: Row) -> Sentence:
    """Say why `following`, with more workers than `row`, is no faster."""
    workers = facts.workers(following)
    if following.crowded and not row.crowded:
        return say(
            "with {workers}, {processes} take turns on {cores}",
            workers=workers, processes=facts.processes(following),
            cores=facts.cores(following),
        )  # fmt: skip
    if _lost(following) < NOTABLE or not _explains(row, following):
        return say("")
    phase, words = max(LOST.items(), key=lambda pair: following.shares.get(pair[0], 0.0))
    return say(
        "with {workers}, {words} takes {share} of the time", workers=workers, words=words,
        share=facts.share(following, phase),
    )  # fmt: skip


def _lost(row: Row) -> float:
    """Return which part of the time the workers communicate, wait, or idle at the end."""
    found = share(row.runs, *LOST)
    return found.median if found else 0.0


def _explains(row: Row, following: Row) -> bool:
    """Say whether communication and waiting grew by most of the time that the workers lost."""
    if row.seconds is None or following.seconds is None or row.by_rate:
        return False
    ideal = row.seconds.median * row.workers / following.workers
    before, after = _lost(row), _lost(following)
    lost = following.seconds.median - ideal
    return after * following.seconds.median - before * ideal >= MOSTLY * lost > 0


def crowding(summary: Summary) -> Sentence:
    """Say which configurations had more processes than cores."""
    crowded = [row for row in summary.rows if row.crowded]
    if not crowded:
        return say("")
    if len({row.cores for row in crowded}) > 1:
        return say("Runs with more processes than their machine has cores say little of scaling.")
    cores = facts.cores(crowded[0], "")
    counts = facts.numbers(
        crowded,
        lambda row: fact("processes", row.processes, runs=row.runs, text=str(row.processes)),
    )
    one = {row.cores for row in crowded} == {1}
    return say(
        "The machine has {cores} {noun}: runs with {counts} processes share them, and say little "
        "about scaling.",
        cores=cores, noun="core" if one else "cores", counts=counts,
    )  # fmt: skip


def threads(summary: Summary) -> Sentence:
    """Say so where workers had several threads, or not all the same number of them."""
    known = [(row, t) for row in summary.rows if (t := _threads(row))]
    pairs = {(row.workers, t) for row, t in known}
    held = {row.workers: row for row, _ in known}
    if len(held) < len(pairs):
        counts = facts.numbers([row for row, _ in known], lambda row: _thread_fact(row))
        return say("Workers have {counts} threads, as the configurations say.", counts=counts)
    counts_of = {t for _, t in pairs}
    if not held or counts_of == {1}:
        return say("")
    if len(counts_of) == 1:
        return say("Each worker has {threads}.", threads=_thread_fact(known[0][0], "thread"))
    few, many = held[min(held)], held[max(held)]
    return say(
        "Threads per worker differ: {few} had {one}, {many} {other} each, so that speed-up is not "
        "against one core.",
        few=facts.workers(few), one=_thread_fact(few), many=facts.workers(many),
        other=_thread_fact(many),
    )  # fmt: skip


def _threads(row: Row) -> int | None:
    counted = number(row.runs[0].machine, "threads_per_worker")
    return int(counted) if counted else None


def _thread_fact(row: Row, noun: str = "") -> Fact:
    count = _threads(row) or 0
    text = plural(count, noun) if noun else str(count)
    return fact("threads per worker", count, runs=row.runs[:1], text=text)


def waiting(summary: Summary) -> list[Sentence]:
    """Say which configuration loses most to communication and waiting, and what masters wait."""
    rows = [row for row in summary.rows if str(lost(row))]
    if not rows:
        return _masters(summary)
    roomy = [row for row in rows if not row.crowded] or rows
    most = "The most time is lost with {who}"
    if len(roomy) < len(rows):
        most = "Where each process has a core, the most time is lost with {who}"
    rows = roomy
    row = max(rows, key=_lost)
    if rows[1:] and percent(_lost(row)) == percent(0.0):
        return _masters(summary)
    lagging = row.group.strategy not in FREE and _same_in_all(row)
    slowest = _slowest(typical_run(row)) if lagging else say("")
    more = say("; {slowest}", slowest=slowest) if slowest else say("")
    only = say(most, who=who(summary, row)) if rows[1:] else who(summary, row)
    return [say("{only}: {lost}{more}.", only=only, lost=lost(row), more=more), *_masters(summary)]


def _in_typical(summary: Summary, words: str) -> str:
    """Return a sentence with the runs that it is of, where there are repeats."""
    return f"In typical runs {words}" if summary.repeats > 1 else words[0].upper() + words[1:]


def _same_in_all(row: Row) -> bool:
    """Say whether waiting is worth a word and the same worker is slowest in every repeat."""
    slowest = {found[0].rank for run in row.runs if (found := _lag(run))}
    return row.shares.get("wait", 0) > 0.02 and len(slowest) == 1


def _slowest(run: Run) -> Sentence:
    """Say which worker the others wait for, if its computing explains at least half of that."""
    found = _lag(run)
    if found is None:
        return say("")
    slow, longest, usual, waits = found
    if longest - usual < MOSTLY * waits:
        return say("")

    many = sum(process.trains for process in run.team) > 2
    rank = fact(
        "rank that computes longest", slow.rank, how="derived", runs=[run], text=str(slow.rank)
    )
    return say(
        "{role} {rank} computes longest, and {others} for it", rank=rank,
        others="the others wait" if many else "the other waits",
        role="worker" if run.workers > 1 else "process",
    )  # fmt: skip


def _lag(run: Run) -> tuple[Process, float, float, float] | None:
    """Return the worker that computes longest, how long, how long the others, and their waiting."""
    team = [(p.compute, p) for p in run.team if p.trains and p.compute is not None]
    if len(team) < 2:
        return None
    longest, slow = max(team, key=lambda pair: pair[0])
    others = [pair for pair in team if pair[1] is not slow]
    waits = [p.wait for _, p in others if p.wait is not None]
    usual = fmean(compute for compute, _ in others)
    return (slow, longest, usual, fmean(waits)) if waits else None


def _masters(summary: Summary) -> list[Sentence]:
    """Say which part of their measured time the masters wait."""
    idle: dict[int, tuple[float, Row]] = {}
    for row in summary.rows:
        parts = [part for p in typical_run(row).team if (part := _idle(p)) is not None]
        if parts:
            idle[id(row)] = (fmean(parts), row)
    if not idle:
        return []
    among = [[typical_run(row)] for _, row in idle.values()]

    def stated(pair: tuple[float, Row], how: How) -> Fact:
        return fact(
            "waiting of the masters", pair[0], how=how, runs=[typical_run(pair[1])], among=among,
            text=percent(pair[0]),
        )  # fmt: skip

    least = min(idle.values(), key=lambda pair: pair[0])
    most = max(idle.values(), key=lambda pair: pair[0])
    if percent(least[0]) == percent(most[0]):
        words = _in_typical(summary, "the masters wait for {part} of their time.")
        return [say(words, part=stated(most, "most"))]
    words = "the masters wait for {least} ({one}) to {most} ({other}) of their time."
    return [
        say(
            _in_typical(summary, words),
            least=stated(least, "least"), one=who(summary, least[1]), most=stated(most, "most"),
            other=who(summary, most[1]),
        )
    ]  # fmt: skip


def _idle(process: Process) -> float | None:
    """Return which part of a master's measured time it waited; None of any other process.

    Its own time, not that of the training: a master also waits while others start and evaluate.
    """
    if process.role != "master":
        return None
    whole = sum(part or 0.0 for part in process.phases)
    return (process.wait or 0.0) / whole if whole > 0 else None


def _could_balance(run: Run) -> bool:
    """Say whether parts that follow the workers' speeds are one option away, and not refused.

    Private runs, where they are, never get here: how long their workers waited is not read.
    """
    options = run.config
    equal = options.get("balance") == "none" and options.get("partition") == "balanced"
    fixed = options.get("shares") or options.get("on_failure") == "continue"
    return run.strategy == "sync" and equal and not fixed


def help_wanted(summary: Summary) -> list[Sentence]:
    """Say what would help, from what was measured; nothing where nothing stands out."""
    states = []
    crowded = [row for row in summary.rows if row.crowded and _slowed(summary, row)]
    if crowded:
        least = min(crowded, key=lambda row: row.cores or 0)
        states.append(say("Use no more processes than the {cores}.", cores=facts.cores(least)))
    fitting = [row for row in summary.rows if row.workers > 1 and not row.crowded]
    if most := _largest(fitting, "communicate"):
        states.append(
            say(
                "{who} spends {share} of its time communicating: try a larger batch, a cheaper "
                "all-reduce, or averaging less often.",
                who=who(summary, most), share=facts.share(most, "communicate"),
            )
        )  # fmt: skip
    if most := _largest([row for row in fitting if row.group.strategy not in FREE], "wait"):
        option = " (--balance speed)" if _could_balance(typical_run(most)) else ""
        states.append(
            say(
                "{who} spends {share} of its time waiting: give slow workers less work{option}, or "
                "use a strategy that does not wait.",
                who=who(summary, most), share=facts.share(most, "wait"), option=option,
            )
        )  # fmt: skip
    if most := _largest(fitting, "idle"):
        states.append(
            say(
                "{who} is idle for {share} of its time at the end, until the slowest worker has "
                "finished: give slow workers less work.",
                who=who(summary, most), share=facts.share(most, "idle"),
            )
        )  # fmt: skip
    if not states:
        return []
    return [listed([capitalised(state) for state in states], " ", " ")]


def _slowed(summary: Summary, row: Row) -> bool:
    """Say whether the same strategy is faster where each process has a core."""
    times = [r.seconds.median for r in summary.of(row.group) if r.seconds and not r.crowded]
    return row.seconds is not None and any(time < row.seconds.median for time in times)


def _largest(rows: Sequence[Row], phase: str) -> Row | None:
    """Return the configuration that spends most on a phase, if that is much."""
    much = [row for row in rows if row.shares.get(phase, 0) > 2 * NOTABLE]
    return max(much, key=lambda row: row.shares[phase], default=None)


def comment(summary: Summary) -> list[Sentence]:
    """Comment on where the time goes."""
    first, *masters = waiting(summary) or [say("")]
    return some(first, *help_wanted(summary), *masters)
