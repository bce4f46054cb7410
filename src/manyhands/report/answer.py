"""The first sentences: which configuration leads, what it gains, what the measurement supports."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.report import disturbance, facts, option_cost, option_values, privacy_price
from manyhands.report.best_configuration import classes, one_answer
from manyhands.report.facts import who
from manyhands.report.formatting import percent, seconds
from manyhands.report.sentences import Sentence, capitalised, fact, listed, say
from manyhands.report.significance import compare, pairs
from manyhands.report.summary import Choice, Row, Summary

_NAMED = 3  # rivals that a sentence names


def opening(summary: Summary) -> tuple[str, ...]:
    """Return what page, PDF, `report.json` and terminal say first."""
    if compared := option_values.compare(summary):
        return (*option_cost.sentences(compared), *doubts(summary))
    return answer(summary)


def answer(summary: Summary) -> tuple[Sentence, ...]:
    """Return the headline sentences; they say no more than the records do."""
    if not summary.rows:
        return (say("No run finished, so there is nothing to compare."),)
    choice = summary.choice
    if choice is None:
        return (*privacy_price.answer(summary), *_alone(summary), *doubts(summary))
    if not choice.learned:
        return _nothing_learned(summary, choice)
    found = (
        *privacy_price.answer(summary),
        _headline(summary, choice),
        *doubts(summary),
        _tied(summary, choice),
        _caveat(summary, choice.leader),
    )
    return tuple(capitalised(sentence) for sentence in found if sentence)


def doubts(summary: Summary) -> tuple[Sentence, ...]:
    """Return why the times should not be relied on; the report and `compare` say the same."""
    return tuple(disturbance.doubts(summary))


def _alone(summary: Summary) -> tuple[Sentence, ...]:
    """Say what was measured where configurations cannot be compared."""
    if summary.tasks > 1:
        return (say("These runs are of different tasks, which are not compared with each other."),)
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
    gain = _gain(summary, choice)
    if choice.measure == "seconds to target":
        arrived = facts.arrival(summary, row, choice.candidates)
        return say(
            "{who} {crown}: it {reached} {target} accuracy first, after {time}{gain}.",
            who=who(summary, row), crown=_crown(choice), target=facts.target(summary),
            reached="reaches" if choice.supported else "reached", time=arrived, gain=gain,
        )  # fmt: skip
    if choice.measure == "examples per second" and row.rate is not None:
        rates = [(each, each.rate) for each in choice.candidates if each.rate]
        most = facts.extreme(choice.measure, row, rates, True, lambda v: f"{v:,.0f}")
        return say(
            "{who} {crown}: {rate} examples per second{gain}{at}.", crown=_crown(choice),
            who=who(summary, row), rate=most, gain=gain, at=_at(row, gain),
        )  # fmt: skip
    times = [(each, each.seconds.median) for each in choice.candidates if each.seconds]
    least = facts.extreme("seconds", row, times, False, seconds)
    if row.group.strategy == "sequential":
        return say(
            "One worker {crown}: {who} took {time}{at}, and no other configuration gained on it by "
            "the rule below.",
            crown=_crown(choice), who=who(summary, row), time=least, at=_at(row),
        )  # fmt: skip
    return say(
        "{who} {crown}: {time} of training{gain}{at}.", who=who(summary, row), time=least,
        crown=_crown(choice), gain=gain, at=_at(row, gain),
    )  # fmt: skip


def _crown(choice: Choice) -> Sentence:
    """Say "is best here" or "leads", and in the same breath whether its runs were disturbed."""
    verb = "is best here" if choice.supported else "leads"
    return say("{verb}{though}", verb=verb, though=disturbance.clause(choice.leader))


def _gain(summary: Summary, choice: Choice) -> Sentence:
    """Say what the leader gains on its reference, by the measure that it was chosen by."""
    row = choice.leader
    if row.shown_speedup is None or (row.by_own and row.workers == 1):
        return say("")
    against = (
        say("{label} with one worker", label=facts.label(row))
        if row.by_own
        else say("the sequential run")
    )
    if any(run.disturbed for run in row.reference) and row.reference != row.runs:
        against = say("{against}, which was disturbed", against=against)
    if choice.measure == "seconds to target":
        return _sooner(summary, row, against)
    if row.shown_speedup < 1.05:
        pace = facts.speedup(row, lambda v: f"{v:.2f}")
        return say(", no faster than {against} ({pace} times as fast)", against=against, pace=pace)
    pace = facts.speedup(row, lambda v: f"{v:.1f}")
    return say(", {pace} times as fast as {against}", pace=pace, against=against)


def _sooner(summary: Summary, row: Row, against: Sentence) -> Sentence:
    """Say how much sooner the leader reached the target than its reference, if that did."""
    base = summary.row_of(row.reference)
    if base is None or base.to_target is None or not row.to_target or base.runs == row.runs:
        return say("")
    arrived = facts.arrival(summary, base)
    return say(", where {against} takes {time}", against=against, time=arrived)


def _tied(summary: Summary, choice: Choice) -> Sentence:
    """Say which configurations the measurement does not tell from the leader."""
    rivals = choice.rivals
    fewest = min((choice.leader.runs, *(row.runs for row in rivals)), key=len)
    if not rivals and len(fewest) > 1:
        words = "Since runs that are compared were disturbed, no best is named."
        return say(words if choice.disturbed else "")
    if len(fewest) == 1:
        each = "Every configuration" if _once(summary) else "Some configurations"
        return say(
            "{each} ran once, so that chance cannot be ruled out and no best is named.", each=each
        )
    count = len(choice.candidates) - 1
    more = facts.aim(summary) if choice.measure == "seconds to target" else {}
    tests = [
        compare(choice.leader, row, choice.measure, count, summary.rows, **more).resting()
        for row in rivals
    ]
    return say(
        "With {least}{repeats} it cannot be told apart from {names}{tests}: no best is named.",
        least="" if len({len(row.runs) for row in (choice.leader, *rivals)}) == 1 else "at least ",
        repeats=facts.repeats(fewest), names=_some(summary, rivals),
        tests=listed(tests, "", ""),
    )  # fmt: skip


def _once(summary: Summary) -> bool:
    return all(len(row.runs) == 1 for row in summary.rows)


def _some(summary: Summary, rows: Sequence[Row]) -> Sentence:
    """Name the first few configurations, and say how many others there are."""
    if len(rows) <= _NAMED + 1:
        return listed([who(summary, row) for row in rows])
    rest = rows[_NAMED:]
    names = listed([who(summary, row) for row in rows[:_NAMED]], last=", ")
    return say("{names} and {rest} others", names=names, rest=facts.configurations(rest))


def _caveat(summary: Summary, leader: Row) -> Sentence:
    """Say how much accuracy the leader gives up against the most accurate configuration."""
    rows = [row for row in summary.comparable if row.accuracy]
    if not rows or leader.accuracy is None:
        return say("")
    top = max(rows, key=lambda row: row.accuracy.median if row.accuracy else 0)
    assert top.accuracy is not None
    gap = top.accuracy.median - leader.accuracy.median
    if top is leader or gap <= 0:
        return say("No other was more accurate." if len(rows) > 1 else "")
    verdict = compare(top, leader, "accuracy", pairs(len(rows)), rows)
    return say(
        "The most accurate, {who}, is {gap} above{hedge}.", who=who(summary, top),
        gap=facts.gap(top, leader), hedge=verdict.hedge(),
    )  # fmt: skip


def _time(row: Row) -> object:
    return facts.time(row) if row.seconds else "–"


def _at(row: Row, after: str = "") -> Sentence:
    """Say with which accuracy or metric, after some other clause."""
    comma = "," if after else ""
    if row.accuracy is not None:
        return say("{c} at {a} accuracy", c=comma, a=facts.accuracy(row))
    metric = row.runs[0].metric
    if not metric or row.score is None:
        return say("")
    return say("{c} at {metric} {value}", c=comma, metric=metric, value=facts.score(row))
