"""Comments on what was learned, one function per figure: accuracy, loss or another metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.best_configuration import one_answer
from manyhands.report.analysis.configuration_facts import extreme, who
from manyhands.report.analysis.significance import Verdict, compare, pairs
from manyhands.report.analysis.summary import AMOUNT, Row, Summary
from manyhands.report.figures.plots import featured, first_of_groups, path
from manyhands.report.records.runs import Epoch
from manyhands.report.wording.formatting import count, percent, some
from manyhands.report.wording.sentences import Sentence, capitalised, listed, say

VISIBLE = 0.001  # a change of accuracy worth a sentence
_LISTED = 4  # configurations that learned little, each with its accuracy
_MOST = 2  # sentences about curves that change, and names in a sentence


def final_accuracy(summary: Summary) -> list[Sentence]:
    """Comment on the accuracies: their range, what did not learn, what a test tells apart."""
    rows = [row for row in summary.comparable if row.accuracy]
    if summary.tasks > 1:
        return [say("Accuracies of different tasks are not compared.")]
    if summary.target_given:
        words = "Runs end when they reach {target}, so their final accuracies are not compared."
        return some(_unlearned(summary, rows), say(words, target=facts.target(summary)))
    learned = [row for row in rows if not row.unlearned]
    values = [(row, _accuracy(row)) for row in learned]
    return some(
        _unlearned(summary, rows), *_trends(summary),
        _range(summary, values, "accuracy", "accuracy", _percent), same(summary),
    )  # fmt: skip


def final_score(summary: Summary) -> list[Sentence]:
    """Comment on the metric at the end: its range, and whether a test tells the ends apart."""
    values = [(row, row.score.median) for row in summary.rows if row.score]
    better = say(f"{'More' if summary.higher else 'Less'} is better.")
    return some(_range(summary, values, "score", summary.metric, _short), better)


def _range(
    summary: Summary,
    values: Sequence[tuple[Row, float]],
    what: str,
    name: str,
    form: Callable[[float], str],
) -> Sentence:
    """State the lowest and the highest value, and whether a test tells them apart."""
    if not values:
        return say("")
    (low, least), (top, most) = (f(values, key=lambda pair: pair[1]) for f in (min, max))
    if least == most:
        words = (
            "The {name} is {value}." if len(values) == 1 else "Everywhere the {name} is {value}."
        )
        return say(words, name=name, value=extreme(what, top, values, True, form))
    pool = [row for row, _ in values]
    return say(
        "{of} {name} ranges from {least} for {low} to {most} for {top}{hedge}{seeds}.", name=name,
        of=_which(summary, what),
        low=who(summary, low), least=extreme(what, low, values, False, form),
        top=who(summary, top), most=extreme(what, top, values, True, form),
        hedge=compare(top, low, what, pairs(len(pool))).hedge(), seeds=facts.other_seeds(low, top),
    )  # fmt: skip


def _which(summary: Summary, what: str) -> str:
    """Return the words for the configurations that a range is of."""
    if what == "accuracy" and any(row.unlearned for row in summary.comparable):
        return "Apart from these, the"
    if what == "accuracy" and any(row.overran and row.accuracy for row in summary.rows):
        return "Among runs that did not train on while they were evaluated, the"
    return "The"


def _unlearned(summary: Summary, rows: Sequence[Row]) -> Sentence:
    """Name the configurations that learned little, in all repeats or in some; count many."""
    none = [row for row in rows if row.collapsed]
    if len(none) > _LISTED:
        levels = facts.extremes("accuracy", [(row, _accuracy(row)) for row in none], _percent)
        some_of = facts.configurations(none)
        few = say("Little was learned by {n} configurations ({a}).", n=some_of, a=levels)
        none = []
    else:
        few = say("")
    lost = [say("{who} ({a})", who=who(summary, row), a=facts.accuracy(row)) for row in none]
    split = [
        say("{who}, {a}", who=who(summary, row), a=facts.accuracy(row)) for row in rows if row.mixed
    ]
    return listed(
        some(
            say("Little was learned by {lost}.", lost=listed(lost)) if lost else few,
            say("Not every repeat learned: {split}.", split=listed(split, "; ", "; "))
            if split
            else say(""),
        ),
        " ",
        " ",
    )


def _percent(value: float) -> str:
    return percent(value, 2)


def _short(value: float) -> str:
    return f"{value:.4g}"


def _accuracy(row: Row) -> float:
    assert row.accuracy is not None
    return row.accuracy.median


def _trends(summary: Summary) -> list[Sentence]:
    """Say where a test tells the accuracy at one end of the axis from that at the other."""
    workers = summary.layout.x == "workers"
    axis = "" if workers else summary.layout.x.replace("_", " ") + " "
    curves = [
        [row for row in summary.of(group) if row.accuracy and not row.unlearned and not row.overran]
        for group in summary.groups
    ]
    curves = [rows for rows in curves if len(rows) > 1]
    states = []
    for rows in curves:
        first, last = rows[0], rows[-1]
        verdict = compare(first, last, "accuracy", len(curves))
        change = _accuracy(last) - _accuracy(first)
        if verdict.apart and abs(change) > VISIBLE:
            states.append(
                say(
                    "{label} {verb} from {one} to {other} between {axis}{few} and {many} ({p}).",
                    label=facts.label(first), verb="falls" if change < 0 else "rises",
                    one=facts.accuracy(first), other=facts.accuracy(last),
                    axis=axis, few=facts.axis(summary, first),
                    many=facts.workers(last) if workers else facts.axis(summary, last),
                    p=verdict.stated(),
                )
            )  # fmt: skip
    return states[:_MOST]


def same(summary: Summary) -> Sentence:
    """Compare the strategies at the same number of workers, against sync where it is there."""
    held = {
        g: {row.workers: row for row in summary.of(g) if not row.overran} for g in summary.groups
    }
    held = {
        g: rows
        for g, rows in held.items()
        if max(rows, default=1) > 1 and g.strategy != "sequential"
    }
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
    if any(len(row.runs) < 2 for row in (base, *others)):
        return say("")
    tests = [
        (row, measure, compare(row, base, measure, 2 * len(others)))
        for row in others
        for measure in ("seconds", "accuracy")
        if getattr(row, measure) is not None and getattr(base, measure) is not None
    ]
    if not tests:
        return say("")
    parts = [_told(row, base, measure, test) for row, measure, test in tests if test.apart]
    if not parts:
        return say(
            "With {workers}, no strategy differs from {base} in time or accuracy by more than "
            "chance explains{tests}.",
            workers=facts.workers(base), base=facts.label(base),
            tests=listed([test.resting() for _, _, test in tests], "", ""),
        )  # fmt: skip
    return say(
        "With {workers}, against {base}: {parts}.", workers=facts.workers(base),
        base=facts.label(base), parts=listed(parts, "; ", "; "),
    )  # fmt: skip


def _told(row: Row, base: Row, measure: str, test: Verdict) -> Sentence:
    """State a difference in time or in accuracy that a test has told."""
    label, p = facts.label(row), test.stated()
    if measure == "accuracy":
        gap = facts.gap(row, base)
        side = "above" if gap.value > 0 else "below"
        words = "{label} has an accuracy {gap} {side} ({p})"
        return say(words, label=label, gap=gap, side=side, p=p)
    assert row.seconds is not None
    assert base.seconds is not None
    faster = row.seconds.median < base.seconds.median
    one, other = (row, base) if faster else (base, row)
    pace = facts.pace(one, other)
    words = "is {pace} as fast" if faster else "takes {pace} as long"
    return say("{label} " + words + " ({p})", label=label, pace=pace, p=p)


def to_target(summary: Summary) -> list[Sentence]:
    """Comment on accuracy over time: which configurations reach the target first, last or never."""
    judged = [row for row in summary.rows if row.accuracy and not row.overran]
    reached = any(row.reached for row in judged) and not one_answer(summary.rows)
    if summary.target is None or not reached:
        return some(chosen(summary))
    never = [row for row in judged if row.reached == 0]
    partly = [row for row in judged if 0 < row.reached < len(row.runs)]
    parts = [
        say(words, who=facts.named(summary, rows, _MOST), target=facts.target(summary))
        for rows, words in (
            (never, "{who} did not reach {target}"),
            (partly, "{who} reached {target} in some repeats only"),
        )
        if rows
    ]
    late = say("{parts}.", parts=listed(parts, "; ", "; ")) if parts else say("")
    return some(_race(summary, judged), capitalised(late), chosen(summary))


def _race(summary: Summary, rows: Sequence[Row]) -> Sentence:
    """Say which configuration reaches the target first, and which last, by their medians."""
    arrived = [row for row in rows if row.to_target is not None]
    if len(arrived) < 2 or summary.machines > 1:
        return say("")
    first, last = (f(arrived, key=lambda row: row.to_target or 0.0) for f in (min, max))
    test = compare(first, last, "seconds to target", pairs(len(arrived)), **facts.aim(summary))
    apart = max(first.arrivals) < min(last.arrivals) and not test.apart
    words = "{first} reached {target} first, after {least}, and {last} last, after {most}{test}."
    if any(0 < row.reached < len(row.runs) for row in rows):
        words = (
            "Of what reached {target} in every repeat, {first} was first, after {least}, and "
            "{last} last, after {most}{test}."
        )
    return say(
        words,
        first=who(summary, first), target=facts.target(summary),
        least=facts.arrival(summary, first, arrived), last=who(summary, last),
        most=facts.arrival(summary, last), test=test.resting() if apart else test.brief(),
    )  # fmt: skip


def chosen(summary: Summary) -> Sentence:
    """Say which configurations are drawn, where it is not all of them."""
    drawn = featured(summary)
    if len(drawn) == len(summary.rows):
        return say("")
    usual = first_of_groups(summary, drawn) if len(summary.groups) > 1 else drawn
    leader = summary.choice.leader if summary.choice else None
    also = say("")
    if leader in drawn and len(summary.groups) < len(summary.rows):
        kin = [row for row in summary.of(leader.group) if row is not leader]
        if any(row in drawn for row in kin):
            also = say(", and the leader, {who}", who=who(summary, leader))
        elif leader not in first_of_groups(summary, summary.rows):
            also = say(", and in place of one the leader, {who}", who=who(summary, leader))
    number = facts.configurations(usual)
    soon = summary.target is not None and summary.layout.x not in AMOUNT
    target = facts.target(summary) if soon else ""
    if len(summary.groups) == 1:
        return say("The figure shows {number} configurations, the first that were evaluated.",
                   number=number)  # fmt: skip
    if len(summary.groups) == len(summary.rows):
        words = "the {number} configurations that reached {target} first" if soon else (
            "the first {number} configurations")  # fmt: skip
        return say("The figure shows " + words + "{also}.", number=number, target=target, also=also)
    which = f"the configuration with the largest {summary.layout.x.replace('_', ' ')}"
    if summary.layout.x not in AMOUNT:
        which = "the first to {target}" if soon else "the fastest configuration"
    words = f"The figure shows {which} of each curve{{also}}."
    if len(usual) < len(summary.groups):
        rest = "the {number} curves that got there first" if soon else (
            "each of the first {number} curves above")  # fmt: skip
        words = f"The figure shows {which} of {rest}{{also}}."
    shown = number if "{number}" in words else ""
    return say(words, number=shown, target=target, also=also)


def loss_over_time(summary: Summary) -> list[Sentence]:
    """Name the configurations whose loss rises again, drawn or not."""
    held = [(row, [v for _, v in path(row, _when, _loss)]) for row in summary.rows]
    rising = [row for row, heights in held if _rises(heights)]
    names = facts.named(summary, rising, _MOST)
    return [say("The test loss rises again with {names}.", names=names)] if rising else []


def _when(epoch: Epoch) -> float | None:
    return epoch.seconds


def _loss(epoch: Epoch) -> float | None:
    return epoch.loss


def _rises(heights: Sequence[float]) -> bool:
    """Say whether a curve ends well above its lowest point, and still goes up."""
    return len(heights) > 1 and heights[-1] > max(1.1 * min(heights), heights[-2])


def amounts(summary: Summary) -> list[Sentence]:
    """Say what saw most examples, where some saw more; of private runs only the mean is known."""
    seen = [(row, row.examples) for row in featured(summary) if row.examples]
    if not seen or summary.tasks > 1 or any(run.privacy for row, _ in seen for run in row.runs):
        return []
    (most, high), (least, low) = (f(seen, key=lambda pair: pair[1]) for f in (max, min))
    if high <= 1.01 * low:
        return []
    return [
        say(
            "In this figure {most} saw the most examples, {top}, and {least} the fewest, {low}.",
            most=who(summary, most), top=extreme("examples", most, seen, True, count),
            least=who(summary, least), low=extreme("examples", least, seen, False, count),
        )
    ]  # fmt: skip
