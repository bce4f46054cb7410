"""The first sentences: which configuration leads, what it gains, what the measurement supports."""

from __future__ import annotations

from dataclasses import replace

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis import option_values
from manyhands.report.analysis.best_configuration import classes, one_answer
from manyhands.report.analysis.configuration_facts import who
from manyhands.report.analysis.significance import compare, pairs
from manyhands.report.analysis.summarise import summarise
from manyhands.report.analysis.summary import Choice, Row, Summary
from manyhands.report.figures import input_growth, option_cost
from manyhands.report.records.fields import text
from manyhands.report.sections import leader, privacy_price, privacy_statement
from manyhands.report.sections.doubts import disturbed_clause, doubts
from manyhands.report.wording.formatting import percent, seconds
from manyhands.report.wording.sentences import Name, Sentence, capitalised, fact, say

_TIED = {
    "seconds": "has the shortest median time",
    "seconds to target": "has the shortest median time",
    "examples per second": "has the highest median rate",
}


def opening(summary: Summary) -> tuple[str, ...]:
    """Return what page, PDF, `report.json` and terminal say first."""
    if compared := option_values.compare(summary):
        spent = privacy_statement.composed(summary)
        return (*option_cost.sentences(compared), *spent, *doubts(summary))
    return answer(summary)


def answer(summary: Summary) -> tuple[Sentence, ...]:
    """Return the headline sentences; they say no more than the records do."""
    spent = privacy_statement.composed(summary)
    if not summary.rows:
        return (say("No run finished, so there is nothing to compare."), *spent)
    if parts := _parts(summary):
        return (*(_headed(name, part) for name, part in parts), *spent, *doubts(summary))
    found = _conclusion(summary)
    choice = summary.choice
    first = 1 + bool(privacy_price.answer(summary))
    if choice is not None and choice.learned:
        first += choice.tied + bool(privacy_price.leader(summary, choice))
    return (*found[:first], *doubts(summary), *found[first:], *spent)


def _parts(summary: Summary) -> list[tuple[Name, Summary]]:
    """Return the summaries of sweeps, or tasks, that are not compared with each other."""
    runs = [run for row in summary.rows for run in row.runs]
    keys = [Name(name) for name in dict.fromkeys(run.source for run in runs)]
    by_source = len(keys) > 1
    if not by_source:
        keys = [Name(name) for name in dict.fromkeys(text(run.data, "name") for run in runs)]
    made = []
    for key in keys:
        mine = [r for r in runs if key == (r.source if by_source else text(r.data, "name"))]
        made.append((key, summarise(replace(summary.loaded, runs=tuple(mine), problems=()))))
    apart = summary.tasks > 1 or all(len(part.rows) > 1 for _, part in made)
    return made if len(made) > 1 and apart else []


def _headed(name: Name, part: Summary) -> Sentence:
    return say("{name}: {first}", name=name, first=_conclusion(part)[0])


def _conclusion(summary: Summary) -> tuple[Sentence, ...]:
    """Say which configuration leads, what a test tells, and what would tell more."""
    choice = summary.choice
    price = privacy_price.answer(summary)
    if choice is None:
        return price or _alone(summary)
    if not choice.learned:
        return _nothing_learned(summary, choice)
    found = (
        *price,
        leader.tied(summary, choice),
        _headline(summary, choice),
        privacy_price.leader(summary, choice),
        *leader.sentences(summary, choice),
        _quicker(summary, choice),
        _caveat(summary, choice.leader),
    )
    return tuple(capitalised(sentence) for sentence in found if sentence)


def _alone(summary: Summary) -> tuple[Sentence, ...]:
    """Say what was measured where configurations cannot be compared."""
    if summary.tasks > 1:
        return (say("These runs are of different tasks, which are not compared with each other."),)
    if summary.machines > 1:
        return (say("These runs are of different machines, so their times are not compared."),)
    if grown := input_growth.comment(summary):
        return tuple(map(capitalised, grown[:2]))
    last = summary.rows[-1]
    row = summary.of(last.group)[0]
    if row is last:
        row = summary.rows[0]
        one = say("{who} trained in {t}{at}.", who=who(summary, row), t=_time(row), at=_at(row))
        return (capitalised(one),)
    of = say(" of {label}", label=facts.label(last)) if len(summary.groups) > 1 else ""
    return (
        say(
            "From {along} {first} to {last} the training time{of} goes from {one} to {other}.",
            along=summary.layout.x.replace("_", " "), first=facts.axis(summary, row), of=of,
            last=facts.axis(summary, last), one=_time(row), other=_time(last),
        ),
    )  # fmt: skip


def _nothing_learned(summary: Summary, choice: Choice) -> tuple[Sentence, ...]:
    """Say that no configuration is better than guessing, which makes all times worthless."""
    values = [(row, row.accuracy.median) for row in choice.candidates if row.accuracy]
    top = max(values, key=lambda pair: pair[1])[0]
    if one_answer(summary.rows):
        return (
            say(
                "No configuration learned: every evaluation of every run gives the same accuracy, "
                "{a}, which one answer to all questions gives, and a test loss no better than "
                "that of guessing. No best is named.",
                a=facts.accuracy(top),
            ),
        )
    highest = facts.extreme("accuracy", top, values, True, lambda v: percent(v, 2))
    count = classes(top) or 0
    chance, loss = facts.guessing(count, top.runs)
    states = say(
        "No configuration learned: the highest accuracy is {highest}, of {who}, where guessing "
        "among {count} classes gives {chance}",
        highest=highest, who=who(summary, top), chance=chance,
        count=fact("classes", count, runs=top.runs, text=str(count)),
    )  # fmt: skip
    if top.loss is None:
        return (say("{states}. No best is named.", states=states),)
    own = fact("loss", top.loss.median, runs=top.runs, text=f"{top.loss.median:.4f}")
    return (
        say(
            "{states}; its test loss is {own}, that of guessing {loss}. No best is named.",
            states=states, own=own, loss=loss,
        ),
    )  # fmt: skip


def _headline(summary: Summary, choice: Choice) -> Sentence:
    """Name the leader and the measure that it was chosen by."""
    row = choice.leader
    gain, crown = _gain(summary, choice), _crown(summary, choice)
    doubt = disturbed_clause(row)
    if choice.measure == "seconds to target":
        arrived = facts.arrival(summary, row, choice.candidates)
        return say(
            "{who} {crown} to {target} accuracy{of}: {time}{gain}.{doubt}",
            of=_timed_alike(summary, choice),
            doubt=doubt, who=who(summary, row),
            crown=crown, target=facts.target(summary), time=arrived, gain=gain,
        )  # fmt: skip
    if choice.measure == "examples per second" and row.rate is not None:
        rates = [(each, each.rate) for each in choice.candidates if each.rate]
        most = facts.extreme(choice.measure, row, rates, True, lambda v: f"{v:,.0f}")
        return say(
            "{who} {crown}: {rate} examples per second{gain}{at}.{doubt}",
            doubt=doubt, crown=crown,
            who=who(summary, row), rate=most, gain=gain, at=_at(row, gain),
        )  # fmt: skip
    times = [(each, each.seconds.median) for each in choice.candidates if each.seconds]
    least = facts.extreme("seconds", row, times, False, seconds)
    return say(
        "{who} {crown}: {time} of training{gain}{at}{loss}.{doubt}",
        loss=_loss(choice),
        doubt=doubt, who=who(summary, row), time=least,
        crown=crown, gain=gain, at=_at(row, gain),
    )  # fmt: skip


def _timed_alike(summary: Summary, choice: Choice) -> Sentence:
    """Count the candidates where others trained on during an evaluation, so clocks differ."""
    if not any(row.overran and row.accuracy for row in summary.rows):
        return say("")
    count = facts.configurations(choice.candidates)
    return say(" of the {count} whose clocks compare", count=count)


def _crown(summary: Summary, choice: Choice) -> Sentence:
    """Say "is fastest" of what a test tells from all others, else what was measured; of which."""
    verb = "is fastest" if choice.supported else "was fastest"
    if choice.tied:
        verb = _TIED[choice.measure]
    return say(
        "{verb}{among}", verb=verb,
        among=f" of those{choice.among}" if _beaten(summary, choice) else "",
    )  # fmt: skip


def _beaten(summary: Summary, choice: Choice) -> bool:
    """Say whether something that was not a candidate was faster than the leader."""
    if choice.measure == "seconds to target":
        return False
    return any(_pace(row, choice) > _pace(choice.leader, choice) for row in summary.comparable)


def _pace(row: Row, choice: Choice) -> float:
    if choice.measure == "examples per second":
        return row.rate or 0.0
    return 1 / row.seconds.median if row.seconds else 0.0


def _gain(summary: Summary, choice: Choice) -> Sentence:
    """Say what the leader gains on its reference, by the measure that it was chosen by."""
    row = choice.leader
    if row.shown_speedup is None or row.reference == row.runs:
        return say("")
    against = (
        say("{label} with one worker", label=facts.label(row))
        if row.by_own
        else _sequential(summary, row)
    )
    if any(run.disturbed for run in row.reference) and row.reference != row.runs:
        against = say("{against} (disturbed)", against=against)
    if choice.measure == "seconds to target":
        return _sooner(summary, row, against)
    if row.shown_speedup < 1.05:
        pace = facts.speedup(row, "{:.2f} times".format)
        return say(", no faster than {against}: {pace} as fast", against=against, pace=pace)
    pace = facts.speedup(row, "{:.2f} times".format)
    return say(", {pace} as fast as {against}", pace=pace, against=against)


def _sequential(summary: Summary, row: Row) -> Sentence:
    """Name the sequential run that a configuration is compared with, where there are several."""
    alone = [one for one in summary.rows if one.group.strategy == "sequential"]
    base = summary.row_of(row.reference)
    if base is None or len(alone) == 1:
        return say("the sequential run")
    return say("{who}", who=who(summary, base))


def _sooner(summary: Summary, row: Row, against: Sentence) -> Sentence:
    """Say how much sooner the leader reached the target than its reference, if that did."""
    base = summary.row_of(row.reference)
    if base is None or base.to_target is None or not row.to_target or base.runs == row.runs:
        return say("")
    arrived = facts.arrival(summary, base)
    alone = [r for r in summary.comparable if r.group.strategy == "sequential" and r.to_target]
    also = say("")
    if len(alone) == 1 and base is not alone[0] and row is not alone[0]:
        also = say(" and the sequential run {time}", time=facts.arrival(summary, alone[0]))
    return say(", where {against} takes {time}{also}", against=against, time=arrived, also=also)


def _quicker(summary: Summary, choice: Choice) -> Sentence:
    """Name the most accurate of those that were faster than the leader, but not good enough."""
    if choice.measure != "seconds" or choice.leader.seconds is None:
        return say("")
    kept = {id(row) for row in choice.candidates}
    rows = [
        row
        for row in summary.comparable
        if id(row) not in kept and row.seconds and row.accuracy and not row.unlearned
        and row.seconds.median < choice.leader.seconds.median
    ]  # fmt: skip
    if not rows:
        return say("")
    row = max(rows, key=lambda each: each.accuracy.median if each.accuracy else 0.0)
    return say(
        "{which} took only {time}, but its accuracy is {level}.",
        which=say("The most accurate of the faster ones, {who},", who=who(summary, row))
        if len(rows) > 1
        else who(summary, row),
        time=facts.time(row), level=facts.accuracy(row),
    )  # fmt: skip


def _caveat(summary: Summary, leader: Row) -> Sentence:
    """Say how much accuracy the leader gives up against the most accurate configuration."""
    rows = [row for row in summary.comparable if row.accuracy]
    if not rows or leader.accuracy is None:
        return say("")
    top = max(rows, key=lambda row: row.accuracy.median if row.accuracy else 0)
    assert top.accuracy is not None
    gap = top.accuracy.median - leader.accuracy.median
    verdict = compare(top, leader, "accuracy", pairs(len(rows)))
    if top is leader or gap <= 0 or not (verdict.apart or verdict.large):
        return say("")
    return say(
        "The most accurate, {who}, is {gap} above{hedge}.", who=who(summary, top),
        gap=facts.gap(top, leader), hedge=verdict.hedge(),
    )  # fmt: skip


def _time(row: Row) -> object:
    return facts.time(row) if row.seconds else "–"


def _loss(choice: Choice) -> Sentence:
    """Say with which test loss the leader ends, where nothing else tells how good it is."""
    known = [(row, row.loss.median) for row in choice.candidates if row.loss]
    if choice.leader.accuracy or choice.leader.score or choice.leader.loss is None:
        return say("")
    own, low = choice.leader, min(known, key=lambda pair: pair[1])[0]
    value = choice.leader.loss.median
    mine = fact("loss", value, runs=own.runs, text=f"{value:.3g}")
    least = facts.extreme("loss", low, known, False, "{:.3g}".format)
    return say(" at test loss {mine} (lowest {least})", mine=mine, least=least)


def _at(row: Row, after: str = "") -> Sentence:
    """Say with which accuracy or metric, after some other clause."""
    comma = "," if after else ""
    if row.accuracy is not None:
        return say("{c} at {a} accuracy", c=comma, a=facts.accuracy(row))
    metric = row.runs[0].metric
    if not metric or row.score is None:
        return say("")
    return say("{c} at {metric} {value}", c=comma, metric=metric, value=facts.score(row))
