"""Comments on how fast it was, from the data: one function per figure, one rule per sentence.

A rule that the records do not support says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.report import bottlenecks, facts
from manyhands.report.facts import who
from manyhands.report.formatting import percent, seconds, some
from manyhands.report.sentences import Name, Sentence, fact, listed, say
from manyhands.report.summary import Row, Summary
from manyhands.report.values import text

_NAMED = 2  # curves that a note names; more are counted
ENOUGH = 0.7  # an efficiency that most would still pay for


def spread(summary: Summary) -> Sentence:
    """Say what is known of the spread."""
    counts = {len(row.runs) for row in summary.rows}
    if counts == {1}:
        return say("Every configuration ran once, so no spread is known.")
    if 1 in counts:
        return say("Where a configuration ran once, no spread is known.")
    return say("")


_SCALED = {
    "linear": "multiplied by the workers",
    "sqrt": "multiplied by the root of the workers",
    "inverse": "divided by the workers",
}


def rates(summary: Summary) -> Sentence:
    """Say where the learning rate follows the workers, if it does not do so everywhere."""
    found: dict[str, list[Row]] = {}
    for row in summary.rows:
        kind = str(row.runs[0].config.get("lr_scaling")) if row.workers > 1 else "none"
        found.setdefault(kind, []).append(row)
    states = [
        say("{how} in {which}", how=_SCALED[kind], which=_which(rows))
        for kind, rows in found.items()
        if kind in _SCALED
    ]
    if len(found) < 2 or not states:
        return say("")
    return say(
        "The learning rate is {states}: accuracies differ for that reason too.",
        states=listed(states, "; ", "; "),
    )


def kernels(summary: Summary) -> Sentence:
    """Say which configurations computed with other kernels than the rest."""
    found: dict[str, list[Row]] = {}
    for row in summary.rows:
        for kind in {text(run.kernels, "choice") for run in row.runs} - {""}:
            found.setdefault(kind, []).append(row)
    if len(found) < 2:
        return say("")
    states = [
        say("{which} with {kind}", which=_which(rows), kind=Name(kind))
        for kind, rows in sorted(found.items())
    ]
    return say(
        "The kernels differ, and times differ for that reason too: {states}.",
        states=listed(states, "; ", "; "),
    )


def _which(rows: Sequence[Row]) -> Sentence:
    """Name the curves that some configurations are on, or count the configurations."""
    labels = list(dict.fromkeys(facts.label(row) for row in rows))
    if len(labels) <= _NAMED:
        return listed(labels)
    return say("{count} configurations", count=facts.configurations(rows))


def time(summary: Summary) -> list[Sentence]:
    """Comment on the training times."""
    rows = [row for row in summary.rows if row.seconds]
    return some(
        say("") if summary.scaling == "weak" or summary.tasks > 1 else _fastest(summary, rows),
        _flatness(summary), _turning(summary), bottlenecks.crowding(summary), _noise(rows),
        spread(summary), _apart(rows),
    )  # fmt: skip


def _fastest(summary: Summary, rows: Sequence[Row]) -> Sentence:
    values = [(row, _median(row)) for row in rows]
    fastest = min(rows, key=_median)
    time = facts.extreme("seconds", fastest, values, False, seconds)
    return say("{who} had the shortest time: {time}.", who=who(summary, fastest), time=time)


def _median(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds.median


def _turning(summary: Summary) -> Sentence:
    """Say from which number of workers on a group takes longer again."""
    if summary.layout.x != "workers":
        return say("")
    states = []
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.seconds]
        if rows[0].scaling == "weak":
            continue
        least = min(rows, key=_median)
        later = rows[rows.index(least) + 1 :]
        if later and _median(later[-1]) > 1.02 * _median(least):
            last = later[-1]
            longer = _median(last) / _median(least) - 1
            excess = fact(
                "seconds", longer, how="excess", runs=last.runs, against=least.runs,
                text=percent(longer),
            )  # fmt: skip
            states.append(
                say(
                    "{label} took least with {few} and {excess} longer with {many}",
                    label=Name(group.label), few=facts.workers(least), excess=excess,
                    many=facts.workers(last, ""),
                )
            )  # fmt: skip
    return say("{states}.", states=listed(states, "; ", "; ")) if states else say("")


def _flatness(summary: Summary) -> Sentence:
    """Say how the time changes when the work grows with the workers; ideally it does not."""
    states = []
    by_workers = summary.layout.x == "workers"
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.seconds]
        if by_workers and len(rows) > 1 and rows[0].scaling == "weak":
            first, last = rows[0], rows[-1]
            grown = last.workers / first.workers
            more = fact(
                "workers", grown, how="multiple", runs=last.runs, against=first.runs,
                text=f"{grown:.3g}",
            )  # fmt: skip
            states.append(
                say(
                    "{label} goes from {first} to {last} with {more} times the work", more=more,
                    label=Name(group.label), first=facts.time(first), last=facts.time(last),
                )
            )  # fmt: skip
    if not states:
        return say("")
    return say("The work grows with the workers, and {states}.", states=listed(states))


def _noise(rows: Sequence[Row]) -> Sentence:
    off = [
        max(s.high - s.median, s.median - s.low) / s.median for row in rows if (s := row.seconds)
    ]
    if not any(off):
        return say("")
    largest = fact(
        "largest deviation of seconds from their median", max(off), how="derived",
        runs=[run for row in rows for run in row.runs], among=[row.runs for row in rows],
        text=percent(max(off), 1),
    )  # fmt: skip
    return say("Repeats lie within ±{largest} of their median.", largest=largest)


def _apart(rows: Sequence[Row]) -> Sentence:
    """Say how long was spent on what is not counted."""
    parts = []
    for words, what in (
        ("start-up", "startup"), ("evaluation", "evaluation"), ("callbacks", "callbacks"),
    ):  # fmt: skip
        known = [(row, value) for row in rows if (value := getattr(row, what)) is not None]
        known = [(row, value) for row, value in known if value or what != "callbacks"]
        if known:
            span = facts.extremes(what, known, seconds)
            parts.append(say("{words} ({span})", words=words, span=span))
    return say("Not counted: {parts}.", parts=listed(parts)) if parts else say("")


def speedup(summary: Summary) -> list[Sentence]:
    """Comment on the speed-ups: against what, where they peak and why."""
    return some(baseline(summary), bottlenecks.threads(summary), *_peaks(summary))


def baseline(summary: Summary) -> Sentence:
    """Say what speed-up is measured against."""
    kinds = {"weak": "examples per second", "strong": "training time"}
    what = listed([kinds[k] for k in sorted({row.scaling for row in summary.rows})])
    shown = [row for row in summary.rows if row.shown_speedup is not None]
    own = [row for row in shown if row.by_own]
    if shown and not own:
        return say("Speed-up is against the sequential run of the same task, in {w}.", w=what)
    if own and len(own) == len(shown) and all(row.speedup is None for row in own):
        return say(
            "There is no sequential run of the same task: speed-up is against the same strategy "
            "with one worker, in {what}.",
            what=what,
        )
    if own:
        names = listed(list(dict.fromkeys(facts.label(row) for row in own)))
        rest = "" if len(own) == len(shown) else " for the others against the sequential run,"
        return say(
            "Speed-up of {names} is against its own run with one worker, since not every "
            "configuration of it has the same sequential run of the same task;{rest} in {what}.",
            names=names, what=what, rest=rest,
        )  # fmt: skip
    return say("")


def _peaks(summary: Summary) -> list[Sentence]:
    """Say where speed-ups peak and why; groups with the same answer share a sentence."""
    rising: list[Sentence] = []
    found: dict[tuple[int, str], list[tuple[Sentence, Row, Sentence]]] = {}
    for group in summary.groups:
        rows = [row for row in summary.of(group) if row.shown_speedup is not None]
        if len(rows) < 2:
            continue
        top = max(rows, key=lambda row: row.shown_speedup or 0)
        later = rows[rows.index(top) + 1 :]
        peak = say("{label} at {pace}", label=Name(group.label), pace=facts.speedup(top))
        if not later:
            with_most = say("{peak} with {workers}", peak=peak, workers=facts.workers(top, ""))
            rising.append(with_most)
            continue
        reason = bottlenecks.why_not_more(top, later[0])
        found.setdefault((top.workers, str(reason)), []).append((peak, top, reason))
    states = [_peak(held) for held in found.values()]
    if rising:
        states.append(say("Highest with the most workers tried: {all}.", all=listed(rising)))
    return states


def _peak(held: Sequence[tuple[Sentence, Row, Sentence]]) -> Sentence:
    """Say where some groups peak; the reason is the first one's, and reads alike for all."""
    _, row, reason = held[0]
    why = say(": {reason}", reason=reason) if reason else say("")
    return say(
        "With {workers} the speed-up peaks ({peaks}){why}.", workers=facts.workers(row),
        peaks=listed([peak for peak, _, _ in held]), why=why,
    )  # fmt: skip


def efficiency(summary: Summary) -> list[Sentence]:
    """Comment on the efficiencies: how far they hold, and where the rest goes."""
    kept, below = [], []
    for group in summary.groups:
        rows = [r for r in summary.of(group) if r.efficiency is not None and r.workers > 1]
        good = [row for row in rows if (row.efficiency or 0) >= ENOUGH]
        if good:
            kept.append(
                say(
                    "{label} up to {workers} ({part})", label=Name(group.label),
                    workers=facts.workers(good[-1], ""), part=facts.efficiency(good[-1]),
                )
            )  # fmt: skip
        elif rows:
            below.append(Name(group.label))
    level = facts.threshold("efficiency worth paying for", ENOUGH, percent(ENOUGH))
    masters = any(run.team and any(not p.trains for p in run.team)
                  for row in summary.rows for run in row.runs)  # fmt: skip
    return some(
        say("Workers that keep the efficiency at {level} or more: {kept}.", level=level,
            kept=listed(kept)) if kept else say(""),
        say("Below {level} with any number of workers: {below}.", level=level,
            below=listed(below)) if below else say(""),
        say("Efficiency is speed-up per process; masters count as well." if masters else ""),
        bottlenecks.crowding(summary),
    )  # fmt: skip
