"""Comments on what was learned: accuracies and losses, one function per figure."""

from __future__ import annotations

from collections.abc import Callable

from manyhands.report import measures
from manyhands.report.comments import spread
from manyhands.report.measures import who
from manyhands.report.plots import featured, path
from manyhands.report.runs import Epoch
from manyhands.report.sentences import Fact, How, Sentence, fact, listed, say
from manyhands.report.significance import compare, pairs
from manyhands.report.tables import Row, Summary
from manyhands.report.wording import count, percent, some

VISIBLE = 0.001  # a change of accuracy worth a sentence
_MOST = 5  # sentences about curves that change
Ends = list[tuple[Row, float]]


def accuracy(summary: Summary) -> list[Sentence]:
    """Comment on the accuracies: the highest, the lowest, and whether a test tells them apart."""
    rows = [row for row in summary.rows if row.accuracy]
    if len(rows) < 2:
        only = say("The accuracy is {a}.", a=measures.accuracy(rows[0])) if rows else say("")
        return some(only, spread(summary))
    top, low = (f(rows, key=_accuracy) for f in (max, min))
    among = [row.runs for row in rows]

    def stated(row: Row, how: How) -> Fact:
        value = _accuracy(row)
        return fact("accuracy", value, how=how, runs=row.runs, among=among, text=percent(value, 2))

    verdict = compare(top, low, "accuracy", pairs(len(rows)), rows)
    ends = say(
        "{top} is most accurate ({high}), {low} least ({least}): {gap} apart{hedge}.",
        top=who(summary, top), high=stated(top, "most"), low=who(summary, low),
        least=stated(low, "least"), gap=measures.gap(top, low), hedge=verdict.hedge(),
    )  # fmt: skip
    if summary.tasks > 1:
        ends = say("Accuracies of different tasks are not compared.")
    elif _accuracy(top) == _accuracy(low):
        ends = say("All have the same accuracy, {a}.", a=measures.accuracy(top))
    return some(ends, *_trends(summary), same(summary), spread(summary))


def _accuracy(row: Row) -> float:
    assert row.accuracy is not None
    return row.accuracy.median


def _trends(summary: Summary) -> list[Sentence]:
    """Say where a test tells the accuracy with most workers from that with fewest."""
    if summary.layout.x != "workers":
        return []
    curves = [[row for row in summary.of(group) if row.accuracy] for group in summary.groups]
    curves = [rows for rows in curves if len(rows) > 1]
    states = []
    for rows in curves:
        first, last = rows[0], rows[-1]
        verdict = compare(first, last, "accuracy", len(curves), summary.rows)
        change = _accuracy(last) - _accuracy(first)
        if verdict.apart and abs(change) > VISIBLE:
            states.append(
                say(
                    "{label} {verb} from {one} to {other} between {few} and {many} ({p}).",
                    label=measures.label(first), verb="falls" if change < 0 else "rises",
                    one=measures.accuracy(first), other=measures.accuracy(last),
                    few=measures.workers(first, ""), many=measures.workers(last),
                    p=verdict.stated(),
                )
            )  # fmt: skip
    return states[:_MOST]


def same(summary: Summary) -> Sentence:
    """Compare the strategies at the same number of workers, against sync where it is there."""
    held = {g: {row.workers: row for row in summary.of(g)} for g in summary.groups}
    held = {g: rows for g, rows in held.items() if max(rows) > 1 and g.strategy != "sequential"}
    if summary.layout.x != "workers" or len({g.strategy for g in held}) < 2:
        return say("")
    common = set.intersection(*(set(rows) for rows in held.values())) - {1}
    if not common:
        return say("")
    roomy = [p for p in common if not any(rows[p].crowded for rows in held.values())]
    at = max(roomy or common)
    reference = next((g for g in held if g.strategy == "sync"), next(iter(held)))
    base = held[reference][at]
    others = [rows[at] for g, rows in held.items() if g is not reference]
    parts = some(*(_versus(summary, row, base, 2 * len(others)) for row in others))
    if not parts:
        return say("")
    return say(
        "With {workers}, against {base}: {parts}.", workers=measures.workers(base),
        base=measures.label(base), parts=listed(parts, "; ", "; "),
    )  # fmt: skip


def _versus(summary: Summary, row: Row, base: Row, comparisons: int) -> Sentence:
    """Compare a configuration with another, in time and in accuracy."""
    if row.seconds is None or base.seconds is None:
        return say("")
    ratio = row.seconds.median / base.seconds.median - 1
    if abs(ratio) < 0.005:
        pace = say("as fast")
    else:
        excess = fact(
            "seconds", ratio, how="excess", runs=row.runs, against=base.runs,
            text=percent(abs(ratio)),
        )  # fmt: skip
        pace = say(
            "{excess} {side}{hedge}", excess=excess, side="slower" if ratio > 0 else "faster",
            hedge=compare(row, base, "seconds", comparisons, summary.rows).brief(),
        )  # fmt: skip
    label = measures.label(row)
    if row.accuracy is None or base.accuracy is None:
        return say("{label} is {pace}", label=label, pace=pace)
    gap = _accuracy(row) - _accuracy(base)
    return say(
        "{label} is {pace}, its accuracy {gap} {side}{hedge}", label=label, pace=pace,
        gap=measures.gap(row, base), side="above" if gap > 0 else "below",
        hedge=compare(row, base, "accuracy", comparisons, summary.rows).brief(),
    )  # fmt: skip


def to_target(summary: Summary) -> list[Sentence]:
    """Comment on accuracy over time: which configuration of all is first at the target."""
    rows = [row for row in summary.rows if row.to_target is not None]
    if summary.target is None or not rows:
        return some(chosen(summary))
    first = min(rows, key=lambda row: row.to_target or 0)
    drawn = featured(summary)
    never = [who(summary, row) for row in drawn if row.to_target is None]
    missing = "not in every repeat there" if summary.repeats > 1 else "never there"
    kind = (
        "asked for" if summary.target_given else f"that at least half of {_judged(summary)} reach"
    )
    return some(
        say(
            "{who} is first at {target}, the accuracy {kind}, after {time}{aside}.", kind=kind,
            who=who(summary, first), target=measures.target(summary),
            time=measures.arrival(summary, first, rows),
            aside="" if any(row is first for row in drawn) else " (not drawn)",
        ),
        say("Of those drawn {missing}: {never}.", missing=missing, never=listed(never))
        if never
        else say(""),
        chosen(summary),
    )  # fmt: skip


def _judged(summary: Summary) -> str:
    """Say of which configurations at least half reach the target."""
    if all(row.accuracy for row in summary.rows):
        return "all configurations"
    return "the configurations with an accuracy"


def chosen(summary: Summary) -> Sentence:
    """Say which configurations are drawn, where it is not all of them."""
    drawn = featured(summary)
    if len(drawn) == len(summary.rows):
        return say("")
    if len(drawn) == len(summary.groups):
        return say("Drawn is the fastest configuration of each curve above.")
    number = measures.configurations(drawn)
    if len({row.group for row in drawn}) < len(drawn):
        return say("Drawn are {number} configurations, the first that were evaluated.",
                   number=number)  # fmt: skip
    return say(
        "Drawn is the fastest configuration of each of the first {number} curves above.",
        number=number,
    )


def loss_over_time(summary: Summary) -> list[Sentence]:
    """Comment on the loss over time, from the values that are drawn."""
    paths = [(row, _heights(row, lambda e: e.loss)) for row in featured(summary)]
    held = [(row, heights) for row, heights in paths if heights]
    if not held:
        return []
    ends = [(row, heights[-1]) for row, heights in held]
    row, least = min(ends, key=lambda pair: pair[1])
    alike = max(end for _, end in ends) <= 1.01 * least
    rising = [who(summary, r) for r, heights in held if heights[-1] > 1.1 * min(heights)]
    end = _end(ends, row, "test loss", "least", f"{least:.4f}")
    if summary.tasks > 1:
        first = say("Losses of different tasks are not compared.")
    elif len(ends) == 1:
        first = say("The test loss ends at {end}.", end=end)
    elif alike:
        first = say("All drawn end within one per cent of the lowest test loss, {end}.", end=end)
    else:
        first = say("Of those drawn {who} ends with the lowest test loss, {end}.", end=end,
                    who=who(summary, row))  # fmt: skip
    again = say("Rising again at the end: {names}.", names=listed(rising)) if rising else say("")
    return some(first, again)


def _end(ends: Ends, row: Row, what: str, how: How, text: str) -> Fact:
    """State the last value drawn of a configuration, the least or the most of all drawn."""
    value = next(end for other, end in ends if other is row)
    return fact(
        f"{what} at the last evaluation", value, how=how, runs=row.runs,
        among=[other.runs for other, _ in ends], text=text,
    )  # fmt: skip


def loss_over_examples(summary: Summary) -> list[Sentence]:
    """Comment on the loss after the same number of examples."""
    seen = [row for row in featured(summary) if row.examples]
    if not seen:
        return []
    most, least = (f(seen, key=_examples) for f in (max, min))
    among = [row.runs for row in seen]

    def stated(row: Row, how: How) -> Fact:
        value = _examples(row)
        return fact("examples", value, how=how, runs=row.runs, among=among, text=count(value))

    top = stated(most, "most")
    if len(seen) == 1:
        return [say("{top} examples were seen, counting repeated ones.", top=top)]
    if _examples(most) <= 1.01 * _examples(least):
        return [say("All saw {top} examples: what differs is what they learned.", top=top)]
    return [
        say(
            "Of those drawn {most} saw most, {top} examples, and {least} fewest, {low}.", top=top,
            most=who(summary, most), least=who(summary, least), low=stated(least, "least"),
        )
    ]  # fmt: skip


def _examples(row: Row) -> float:
    return row.examples or 0


def accuracy_over_examples(summary: Summary) -> list[Sentence]:
    """Comment on the accuracy after the first evaluation."""
    paths = [(row, _heights(row, lambda e: e.accuracy)) for row in featured(summary)]
    rows = [(row, heights[0]) for row, heights in paths if heights]
    return first_of(summary, rows, "test accuracy", lambda value: percent(value, 2))


def first_of(
    summary: Summary, rows: Ends, what: str, form: Callable[[float], str], higher: bool = True
) -> list[Sentence]:
    """Comment on the first evaluation of the configurations that are drawn."""
    if not rows:
        return []
    best, worst = (f(rows, key=lambda pair: pair[1]) for f in (max, min))
    if not higher:
        best, worst = worst, best
    among = [row.runs for row, _ in rows]

    def stated(pair: tuple[Row, float], how: How) -> Fact:
        return fact(
            f"{what} at the first evaluation", pair[1], how=how, runs=pair[0].runs, among=among,
            text=form(pair[1]),
        )  # fmt: skip

    lead = stated(best, "most" if higher else "least")
    if len(rows) < 2:
        return [say("The first evaluation gives {lead}.", lead=lead)]
    if best[1] == worst[1]:
        return [say("At the first evaluation all have {lead}.", lead=lead)]
    return [
        say(
            "At the first evaluation, of those drawn {best} leads with {lead}, {worst} is last "
            "with {low}.",
            best=who(summary, best[0]), lead=lead, worst=who(summary, worst[0]),
            low=stated(worst, "least" if higher else "most"),
        )
    ]  # fmt: skip


def _heights(row: Row, value: Callable[[Epoch], float | None]) -> list[float]:
    """Return the values of a curve that is drawn."""
    return [height for _, height in path(row, lambda epoch: epoch.epoch, value)]
