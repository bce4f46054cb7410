"""Comments on what was learned, one function per figure: accuracy, loss or another metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from manyhands.report import facts
from manyhands.report.facts import extreme, who
from manyhands.report.formatting import count, percent, some
from manyhands.report.notes import spread
from manyhands.report.plots import Form, featured, path
from manyhands.report.runs import Epoch
from manyhands.report.sentences import Sentence, fact, listed, say
from manyhands.report.significance import compare, pairs
from manyhands.report.summary import Row, Summary

VISIBLE = 0.001  # a change of accuracy worth a sentence
_MOST = 5  # sentences about curves that change
Curves = list[tuple[Row, list[float]]]


def final_accuracy(summary: Summary) -> list[Sentence]:
    """Comment on the accuracies: the highest and the lowest, and what did not learn at all."""
    rows = [row for row in summary.comparable if row.accuracy]
    if summary.tasks > 1:
        return some(say("Accuracies of different tasks are not compared."), spread(summary))
    learned = [row for row in rows if not row.unlearned]
    return some(
        _extremes(summary, learned), _unlearned(summary, rows), *_trends(summary), same(summary),
        spread(summary),
    )  # fmt: skip


def _extremes(summary: Summary, rows: Sequence[Row]) -> Sentence:
    """Say which configuration is most accurate, which least, and whether a test tells them."""
    if len(rows) < 2:
        return say("The accuracy is {a}.", a=facts.accuracy(rows[0])) if rows else say("")
    top, low = (f(rows, key=_accuracy) for f in (max, min))
    if _accuracy(top) == _accuracy(low):
        return say("All have the same accuracy, {a}.", a=facts.accuracy(top))
    values = [(row, _accuracy(row)) for row in rows]
    verdict = compare(top, low, "accuracy", pairs(len(rows)), rows)
    return say(
        "{top} is most accurate ({high}), {low} least ({least}): {gap} apart{hedge}.",
        top=who(summary, top), high=extreme("accuracy", top, values, True, _percent),
        low=who(summary, low), least=extreme("accuracy", low, values, False, _percent),
        gap=facts.gap(top, low), hedge=verdict.hedge(),
    )  # fmt: skip


def _unlearned(summary: Summary, rows: Sequence[Row]) -> Sentence:
    """Name the configurations that learned nothing, in all repeats or in some."""
    lost = [
        say("{who} ({a})", who=who(summary, row), a=facts.accuracy(row))
        for row in rows
        if row.collapsed
    ]
    split = [
        say("{who}, {a}", who=who(summary, row), a=facts.accuracy(row)) for row in rows if row.mixed
    ]
    return listed(
        some(
            say("Next to nothing was learned by {lost}.", lost=listed(lost)) if lost else say(""),
            say("Not in every repeat: {split}.", split=listed(split, "; ", "; "))
            if split
            else say(""),
        ),
        " ",
        " ",
    )


def _percent(value: float) -> str:
    return percent(value, 2)


def _accuracy(row: Row) -> float:
    assert row.accuracy is not None
    return row.accuracy.median


def _trends(summary: Summary) -> list[Sentence]:
    """Say where a test tells the accuracy with most workers from that with fewest."""
    if summary.layout.x != "workers":
        return []
    curves = [
        [row for row in summary.of(group) if row.accuracy and not row.unlearned and not row.overran]
        for group in summary.groups
    ]
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
                    label=facts.label(first), verb="falls" if change < 0 else "rises",
                    one=facts.accuracy(first), other=facts.accuracy(last),
                    few=facts.workers(first, ""), many=facts.workers(last),
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
    parts = some(*(_versus(summary, row, base, 2 * len(others)) for row in others))
    if not parts:
        return say("")
    return say(
        "With {workers}, against {base}: {parts}.", workers=facts.workers(base),
        base=facts.label(base), parts=listed(parts, "; ", "; "),
    )  # fmt: skip


def _versus(summary: Summary, row: Row, base: Row, comparisons: int) -> Sentence:
    """Compare a configuration with another, in time and in accuracy."""
    if row.seconds is None or base.seconds is None:
        return say("")
    ratio = base.seconds.median / row.seconds.median
    if f"{ratio:.2f}" == "1.00":
        pace = say("is as fast")
    else:
        faster = ratio > 1
        one, other = (row, base) if faster else (base, row)
        factor = ratio if faster else 1 / ratio
        stated = fact(
            "seconds", factor, how="ratio", runs=one.runs, against=other.runs, text=f"{factor:.2f}"
        )
        pace = say(
            "{verb} {factor} times as {side}{hedge}", verb="is" if faster else "takes",
            factor=stated, side="fast" if faster else "long",
            hedge=compare(row, base, "seconds", comparisons, summary.rows).brief(),
        )  # fmt: skip
    label = facts.label(row)
    if row.accuracy is None or base.accuracy is None or base.unlearned:
        return say("{label} {pace}", label=label, pace=pace)
    if row.unlearned:
        level = facts.accuracy(row)
        return say("{label} {pace}, its accuracy {level}", label=label, pace=pace, level=level)
    gap = _accuracy(row) - _accuracy(base)
    return say(
        "{label} {pace}, its accuracy {gap} {side}{hedge}", label=label, pace=pace,
        gap=facts.gap(row, base), side="above" if gap > 0 else "below",
        hedge=compare(row, base, "accuracy", comparisons, summary.rows).brief(),
    )  # fmt: skip


def to_target(summary: Summary) -> list[Sentence]:
    """Comment on accuracy over time: which configuration of all is first at the target."""
    rows = [row for row in summary.rows if row.to_target is not None]
    if summary.target is None or not rows:
        return some(chosen(summary))
    first = min(rows, key=lambda row: row.to_target or 0)
    drawn = featured(summary)
    judged = [row for row in drawn if row.accuracy and not row.overran]
    never = [who(summary, row) for row in judged if row.reached == 0]
    partly = [who(summary, row) for row in judged if 0 < row.reached < len(row.runs)]
    kind = (
        "asked for"
        if summary.target_given
        else f"that at least half of {_evaluated(summary)} reach"
    )
    return some(
        say(
            "{who} is first at {target}, the accuracy {kind}, after {time}{aside}.", kind=kind,
            who=who(summary, first), target=facts.target(summary),
            time=facts.arrival(summary, first, rows),
            aside="" if any(row is first for row in drawn) else " (not drawn)",
        ),
        say("Of those drawn never there: {never}.", never=listed(never)) if never else say(""),
        say("In some repeats only: {partly}.", partly=listed(partly)) if partly else say(""),
        chosen(summary),
    )  # fmt: skip


def _evaluated(summary: Summary) -> str:
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
    number = facts.configurations(drawn)
    if len({row.group for row in drawn}) < len(drawn):
        return say("Drawn are {number} configurations, the first that were evaluated.",
                   number=number)  # fmt: skip
    return say(
        "Drawn is the fastest configuration of each of the first {number} curves above.",
        number=number,
    )


def final_score(summary: Summary) -> list[Sentence]:
    """Comment on the metric at the end: the best and the worst, and whether a test tells them."""
    rows = [(row, row.score.median) for row in summary.rows if row.score]
    if not rows:
        return []
    if len(rows) < 2:
        value = facts.score(rows[0][0])
        return [say("The {metric} is {value}.", metric=summary.metric, value=value)]
    ordered = sorted(rows, key=lambda pair: pair[1], reverse=summary.higher)
    best, worst = ordered[0][0], ordered[-1][0]
    high, low = ("highest", "lowest") if summary.higher else ("lowest", "highest")
    verdict = compare(best, worst, "score", pairs(len(rows)), summary.rows)
    return [
        say(
            "{best} has the {high} {metric} ({top}), {worst} the {low} ({bottom}){hedge}.",
            best=who(summary, best), high=high, metric=summary.metric, low=low,
            top=extreme("score", best, rows, summary.higher, _short), worst=who(summary, worst),
            bottom=extreme("score", worst, rows, not summary.higher, _short),
            hedge=verdict.hedge(),
        ),
        say(f"{'More' if summary.higher else 'Less'} is better."),
    ]  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.4g}"


def loss_over_time(summary: Summary) -> list[Sentence]:
    """Comment on the loss over time, from the values that are drawn."""
    held = _curves(summary, lambda e: e.loss)
    if not held:
        return []
    rising = [who(summary, r) for r, heights in held if _rises(heights)]
    rows = [(row, row.loss.median if row.loss else heights[-1]) for row, heights in held]
    first = _last(summary, rows, "loss", "test loss", lambda v: f"{v:.4f}", higher=False)
    if summary.tasks > 1:
        first = say("Losses of different tasks are not compared.")
    again = say("Rising again at the end: {names}.", names=listed(rising)) if rising else say("")
    return some(first, again)


def _rises(heights: Sequence[float]) -> bool:
    """Say whether a curve ends well above its lowest point, and still goes up."""
    return len(heights) > 1 and heights[-1] > max(1.1 * min(heights), heights[-2])


def score_over_time(summary: Summary) -> list[Sentence]:
    """Comment on the metric over time: which configuration ends best."""
    rows = [(row, row.score.median) for row, _ in _curves(summary, lambda e: e.score) if row.score]
    name = f"test {summary.metric}"
    return [_last(summary, rows, "score", name, _short, summary.higher)] if rows else []


def _last(
    summary: Summary,
    ends: Sequence[tuple[Row, float]],
    what: str,
    name: str,
    form: Form,
    higher: bool,
) -> Sentence:
    """Say which of the drawn configurations ends best: by the values of the table."""
    row, best = (max if higher else min)(ends, key=lambda pair: pair[1])
    end = extreme(what, row, ends, higher, form)
    which = "highest" if higher else "lowest"
    if len(ends) == 1:
        return say("The {name} ends at {end}.", name=name, end=end)
    if all(abs(value - best) <= 0.01 * abs(best) for _, value in ends):
        words = "All drawn end within one per cent of the {which} {name}, {end}."
        return say(words, which=which, name=name, end=end)
    words = "Of those drawn {who} ends with the {which} {name}, {end}."
    return say(words, who=who(summary, row), which=which, name=name, end=end)


def loss_over_examples(summary: Summary) -> list[Sentence]:
    """Comment on the loss after the first evaluation, and on who saw more examples."""
    held = _curves(summary, lambda e: e.loss)
    first = _first(summary, held, "test loss", lambda value: f"{value:.4f}", higher=False)
    return some(*first, _amounts(summary))


def _amounts(summary: Summary) -> Sentence:
    """Say who saw most examples, where some saw more; of private runs only the mean is known."""
    seen = [(row, row.examples) for row in featured(summary) if row.examples]
    if not seen or any(run.privacy for row, _ in seen for run in row.runs):
        return say("")
    (most, high), (least, low) = (f(seen, key=lambda pair: pair[1]) for f in (max, min))
    if high <= 1.01 * low:
        return say("")
    return say(
        "Of those drawn {most} saw most, {top} examples, and {least} fewest, {low}.",
        most=who(summary, most), top=extreme("examples", most, seen, True, count),
        least=who(summary, least), low=extreme("examples", least, seen, False, count),
    )  # fmt: skip


def accuracy_over_examples(summary: Summary) -> list[Sentence]:
    """Comment on the accuracy after the first evaluation."""
    held = _curves(summary, lambda e: e.accuracy)
    return _first(summary, held, "test accuracy", _percent, higher=True)


def score_over_examples(summary: Summary) -> list[Sentence]:
    """Comment on the metric after the first evaluation."""
    held = _curves(summary, lambda e: e.score)
    return _first(summary, held, "test score", _short, summary.higher)


def _first(summary: Summary, held: Curves, what: str, form: Form, higher: bool) -> list[Sentence]:
    """Say which of the drawn configurations leads at the first evaluation, and which is last."""
    if not held:
        return []
    rows = [(row, heights[0]) for row, heights in held]
    ends = (max, min) if higher else (min, max)
    (best, top), (worst, bottom) = (f(rows, key=lambda pair: pair[1]) for f in ends)
    at = f"{what} at the first evaluation"
    lead = extreme(at, best, rows, higher, form)
    if len(rows) < 2:
        return [say("The first evaluation gives {lead}.", lead=lead)]
    if top == bottom:
        return [say("At the first evaluation all have {lead}.", lead=lead)]
    return [
        say(
            "At the first evaluation, of those drawn {best} leads with {lead}, {worst} is last "
            "with {low}.",
            best=who(summary, best), lead=lead, worst=who(summary, worst),
            low=extreme(at, worst, rows, not higher, form),
        )
    ]  # fmt: skip


def _curves(summary: Summary, value: Callable[[Epoch], float | None]) -> Curves:
    """Return the configurations that are drawn, with the values of their curves."""
    paths = [(row, path(row, lambda epoch: epoch.epoch, value)) for row in featured(summary)]
    return [(row, [height for _, height in points]) for row, points in paths if points]
