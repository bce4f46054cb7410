"""What is known of a configuration (time, accuracy, speed-up …), as facts to state."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from manyhands.report.analysis import run_facts
from manyhands.report.analysis.configurations import name, place
from manyhands.report.analysis.rounds import ratio, rounds
from manyhands.report.analysis.spread import Spread
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import (
    exact_percent,
    percent,
    plural,
    points,
    seconds,
    times,
)
from manyhands.report.wording.sentences import Fact, How, Name, Sentence, fact, listed, say


def who(summary: Summary, row: Row) -> Name:
    """Name a configuration."""
    return Name(name(summary, row))


def named(summary: Summary, rows: Sequence[Row], most: int) -> Sentence:
    """Name the first few configurations, and say how many others there are."""
    if len(rows) <= most + 1:
        return listed([who(summary, row) for row in rows])
    names = listed([who(summary, row) for row in rows[:most]], last=", ")
    return say("{names} and {rest} others", names=names, rest=configurations(rows[most:]))


def other_seeds(one: Row, other: Row) -> str:
    """Say so where two configurations have different seeds: they differ by those as well."""
    mine, theirs = ({str(run.config.get("seed")) for run in row.runs} for row in (one, other))
    return "" if mine == theirs else "; their repeats have different seeds"


def label(row: Row) -> Name:
    """Name the curve that a configuration is on."""
    return Name(row.label)


def source(row: Row) -> Name:
    """Name the sweep that a configuration belongs to."""
    return Name(row.group.source)


def where(summary: Summary, row: Row) -> Name:
    """Name a configuration's place on the axis."""
    return Name(place(summary, row))


def time(row: Row) -> Fact:
    """State a training time."""
    assert row.seconds is not None
    return fact("seconds", row.seconds.median, runs=row.runs, text=seconds(row.seconds.median))


def accuracy(row: Row) -> Sentence:
    """State an accuracy; where some repeats learned little, the range and how many."""
    assert row.accuracy is not None
    if not row.mixed:
        value = row.accuracy.median
        return say("{a}", a=fact("accuracy", value, runs=row.runs, text=percent(value, 2)))
    known = [(run.accuracy, run) for run in row.runs if run.accuracy is not None]
    low, high = (
        fact("accuracy", value, runs=[run], text=percent(value, 2))
        for value, run in (f(known, key=lambda pair: pair[0]) for f in (min, max))
    )
    return say("{low} to {high} ({some})", low=low, high=high, some=unlearned(row))


def unlearned(row: Row) -> Sentence:
    """State how many repeats learned little."""
    some, of = count(row.unlearned, ""), repeats(row.runs)
    return say("{some} of {of} learned little", some=some, of=of)


def score(row: Row) -> Fact:
    """State the value of the metric that runs were judged by."""
    assert row.score is not None
    value = row.score.median
    return fact("score", value, runs=row.runs, text=f"{value:.4g}")


def gap(row: Row, other: Row, what: str = "accuracy") -> Fact:
    """State by how many percentage points two accuracies differ, without the sign."""
    assert row.accuracy is not None
    assert other.accuracy is not None
    value = row.accuracy.median - other.accuracy.median
    return fact(
        what, value, how="difference", runs=row.runs, against=other.runs, text=points(value)
    )


def workers(row: Row, noun: str = "worker") -> Fact:
    """State "4 workers"; without a noun "4"."""
    text = plural(row.workers, noun) if noun else str(row.workers)
    return fact("workers", row.workers, runs=row.runs, text=text)


def processes(row: Row, noun: str = "processes") -> Fact:
    """State "5 processes", the most of any repeat; without a noun "5"."""
    text = f"{row.processes} {noun}".strip()
    return fact("processes", row.processes, runs=row.runs, text=text)


def cores(row: Row, noun: str = "core") -> Fact:
    """State the cores of all hosts."""
    count = row.cores or 0
    text = plural(count, noun) if noun else str(count)
    return fact("cores", count, runs=row.runs, text=text)


def speedup(row: Row, form: Callable[[float], str] = times) -> Sentence:
    """State the speed-up that is shown, against the group's one reference, and its range."""
    assert row.shown_speedup is not None
    return against_reference(row, form)


def against_reference(row: Row, form: Callable[[float], str] = "{:.3g}".format) -> Sentence:
    """State how many times as fast a configuration is as its reference, plausible or not."""
    assert row.ranged_speedup is not None
    return ranged(
        "examples per second" if row.by_rate else "seconds", row.ranged_speedup, row.runs,
        row.reference, form, how="multiple" if row.by_rate else "ratio",
    )  # fmt: skip


def speedup_end(row: Row, end: Literal["low", "high"]) -> Fact:
    """State the lowest, or the highest, speed-up of the repeats."""
    assert row.shown_range is not None
    weak = row.scaling == "weak"
    value = getattr(row.shown_range, end)
    return fact(
        "examples per second" if weak else "seconds", value, how="multiple" if weak else "ratio",
        runs=row.runs, against=row.reference, text=times(value), parameters={"end": end},
    )  # fmt: skip


def pace(row: Row, other: Row) -> Sentence:
    """State how many times as long another configuration takes, and the range of the repeats."""
    found = ratio("seconds", other.runs, row.runs)
    assert found is not None
    return ranged("seconds", found, row.runs, other.runs, "{:.2f} times".format, how="ratio")


def within(row: Row, other: Row) -> str:
    """Say "within rounds" of a ratio of two times, where it is no ratio of their medians."""
    return "within rounds" if rounds(row.runs, other.runs) else ""


def ranged(
    what: str,
    found: Spread,
    runs: Sequence[Run],
    against: Sequence[Run],
    form: Callable[[float], str],
    *,
    how: How,
) -> Sentence:
    """State a ratio and its range, "1.50 times (1.41 to 1.62)"; of single runs the ratio alone."""

    def stated(end: str, value: float, shown: str) -> Fact:
        return fact(
            what, value, how=how, runs=runs, against=against, text=shown,
            parameters={"end": end} if end else {},
        )  # fmt: skip

    middle, *ends = (form(v) for v in (found.median, found.low, found.high))
    low, high = (end.partition(" times")[0] for end in ends)
    stated_middle = stated("", found.median, middle)
    if low == high:
        return say("{middle}", middle=stated_middle)
    return say(
        "{middle} ({low} to {high})", middle=stated_middle,
        low=stated("low", found.low, low), high=stated("high", found.high, high),
    )  # fmt: skip


def excess(what: str, row: Row, other: Row, form: Callable[[float], str]) -> Fact:
    """State by which part a configuration has more of a quantity than another one."""
    found = ratio(what, row.runs, other.runs)
    assert found is not None
    value = found.median - 1
    return fact(what, value, how="excess", runs=row.runs, against=other.runs, text=form(value))


def efficiency(row: Row) -> Fact:
    """State the speed-up per process."""
    assert row.efficiency is not None
    what = "efficiency by examples per second" if row.by_rate else "efficiency"
    return fact(
        what, row.efficiency, how="derived", runs=row.runs, against=row.reference,
        text=percent(row.efficiency),
    )  # fmt: skip


def rate(row: Row) -> Fact:
    """State the examples per second."""
    assert row.rate is not None
    return fact("examples per second", row.rate, runs=row.runs, text=f"{row.rate:,.0f}")


def share(row: Row, *phases: str) -> Sentence:
    """State which part of the workers' time some phases took: the median and the range."""
    found = run_facts.share(row.runs, *phases) or Spread(0.0, 0.0, 0.0, 0)
    low, high = percent(found.low), percent(found.high)
    stated = _share(row, phases, found.median)
    if low == high:
        return say("{median}", median=stated)
    return say(
        "{median} ({low} to {high})", median=stated, low=_share(row, phases, found.low, "low"),
        high=_share(row, phases, found.high, "high"),
    )  # fmt: skip


def _share(row: Row, phases: Sequence[str], value: float, end: str = "") -> Fact:
    return fact(
        f"{' and '.join(phases)} share", value, how="derived", runs=row.runs, text=percent(value),
        parameters={"end": end} if end else {},
    )  # fmt: skip


def lost(row: Row) -> Sentence:
    """State which part of the workers' time was communication or waiting."""
    return share(row, "communicate", "wait")


def idle(row: Row, template: str) -> Sentence:
    """State the part of the workers' time after their own end, where it is no 0 %."""
    nothing = percent(row.shares.get("idle", 0.0)) == percent(0.0)
    return say("") if nothing else say(template, idle=share(row, "idle"))


def target(summary: Summary) -> Fact:
    """State the target accuracy: the one asked for, or the one that half of all reached."""
    assert summary.target is not None
    runs = [run for row in summary.rows for run in row.runs]
    what = "target accuracy" if summary.target_given else "accuracy that half reached"
    among = () if summary.target_given else tuple(row.runs for row in summary.rows if row.accuracy)
    return fact(
        what, summary.target, how="derived", runs=runs, among=among,
        text=exact_percent(summary.target),
    )  # fmt: skip


def arrival(summary: Summary, row: Row, among: Iterable[Row] = ()) -> Fact:
    """State when a configuration reached the target; the least of some, where they are given."""
    assert row.to_target is not None
    assert summary.target is not None
    others = tuple(each.runs for each in among)
    return fact(
        "seconds to target", row.to_target, how="least" if others else "median", runs=row.runs,
        among=others, text=seconds(row.to_target),
        parameters=aim(summary),
    )  # fmt: skip


def aim(summary: Summary) -> dict[str, float]:
    """Return what a fact about the target needs: the target, and whether it was asked for."""
    return {"target": summary.target or 0.0, "asked": float(summary.target_given)}


def repeats(runs: Sequence[Run]) -> Fact:
    """State "3 repeats"."""
    return fact("runs", len(runs), how="count", runs=runs, text=plural(len(runs), "repeat"))


def count(runs: Sequence[Run], noun: str = "run") -> Fact:
    """State "3 runs"; without a noun "3"."""
    text = plural(len(runs), noun) if noun else str(len(runs))
    return fact("runs", len(runs), how="count", runs=runs, text=text)


def configurations(rows: Sequence[Row]) -> Fact:
    """State how many configurations there are."""
    among = [row.runs for row in rows]
    return fact("configurations", len(rows), how="count", among=among, text=str(len(rows)))


def axis(summary: Summary, row: Row) -> Fact:
    """State a configuration's value on the axis."""
    if summary.layout.x == "workers":
        return workers(row, "")
    return fact(
        "option", row.x, runs=row.runs, parameters={"name": summary.layout.x}, text=f"{row.x:g}"
    )


def threshold(what: str, value: float, text: str) -> Fact:
    """State a constant of the report."""
    return fact(what, value, how="constant", text=text)


def extreme(
    what: str,
    row: Row,
    values: Sequence[tuple[Row, float]],
    most: bool,
    form: Callable[[float], str],
) -> Fact:
    """State a configuration's value as the most, or the least, of some configurations' values."""
    value = next(each for other, each in values if other is row)
    return fact(
        what, value, how="most" if most else "least", runs=row.runs,
        among=[other.runs for other, _ in values], text=form(value),
    )  # fmt: skip


def extremes(
    what: str, values: Sequence[tuple[Row, float]], form: Callable[[float], str]
) -> Sentence:
    """State "1.20 s", or "1.20 s to 3.40 s": the least and the most of some configurations."""
    low, high = (f(values, key=lambda pair: pair[1])[0] for f in (min, max))
    least, most = (extreme(what, row, values, row is high, form) for row in (low, high))
    if least.text == most.text:
        return say("{value}", value=least)
    return say("{least} to {most}", least=least, most=most)


def numbers(rows: Sequence[Row], each: Callable[[Row], Fact]) -> Sentence:
    """List the different values of a fact, in order: "2, 4 and 8"."""
    stated = {(f := each(row)).value: f for row in rows}
    return listed([stated[value] for value in sorted(stated)])


def guessing(classes: int, runs: Sequence[Run]) -> tuple[Fact, Fact]:
    """State the accuracy and the loss of a model that guesses among so many classes."""
    chance, loss = 1 / classes, math.log(classes)
    return (
        fact("accuracy of guessing", chance, how="derived", runs=runs, text=percent(chance, 1)),
        fact("loss of guessing", loss, how="derived", runs=runs, text=f"{loss:.4f}"),
    )


def over_repeats(
    runs: Sequence[Run],
    what: str,
    value: Callable[[Run], float | None],
    form: Callable[[float], str],
    **parameters: float,
) -> Fact:
    """State the median over the repeats that recorded it."""
    known = [(run, v) for run in runs if (v := value(run)) is not None]
    found = statistics.median(v for _, v in known)
    return fact(
        what, found, runs=[run for run, _ in known], text=form(found), parameters=parameters
    )
