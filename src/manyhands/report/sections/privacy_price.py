"""How much accuracy privacy costs: the first sentence of a report on private runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from manyhands.privacy.accountant import write_bound
from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configuration_facts import who
from manyhands.report.analysis.configurations import typical_run
from manyhands.report.analysis.privacy_cost import cost, sound
from manyhands.report.analysis.significance import compare
from manyhands.report.analysis.summary import AMOUNT, Choice, Row, Summary
from manyhands.report.wording.formatting import plural
from manyhands.report.wording.sentences import Name, Sentence, capitalised, fact, say


class _Pair(NamedTuple):
    """The most accurate private configuration of a strategy, and the most accurate other one."""

    private: Row
    plain: Row

    @property
    def gap(self) -> float:
        return _accuracy(self.plain) - _accuracy(self.private)


def answer(summary: Summary) -> tuple[Sentence, ...]:
    """Say what privacy costs, or which accuracy is left; nothing where that was not asked."""
    rows = [row for row in summary.rows if row.accuracy]
    private = [row for row in rows if _spent(row) is not None]
    if not private or summary.target_given or summary.tasks > 1 or _amounts(rows):
        return ()
    pairs = _pairs(private, [row for row in rows if not typical_run(row).privacy])
    return (capitalised(_price(summary, pairs) if pairs else _left(summary, private)),)


def _amounts(rows: Sequence[Row]) -> bool:
    """Say whether runs had different amounts of data or training: accuracies differ by that."""
    configs = [row.runs[0].config for row in rows]
    return any(len({str(config.get(field)) for config in configs}) > 1 for field in AMOUNT)


def _pairs(private: Sequence[Row], plain: Sequence[Row]) -> list[_Pair]:
    """Return one pair for each strategy and number of workers that has both."""
    found = {}
    for row in private:
        mine = [r for r in private if _key(r) == _key(row)]
        theirs = [r for r in plain if _key(r) == _key(row)]
        if theirs:
            found[_key(row)] = _Pair(max(mine, key=_accuracy), max(theirs, key=_accuracy))
    return sorted(found.values(), key=lambda pair: pair.gap)


def _key(row: Row) -> tuple[str, str, int, str, str]:
    model = str(row.runs[0].config.get("model"))
    return row.group.source, row.group.strategy, row.workers, row.computer, model


def _price(summary: Summary, pairs: Sequence[_Pair]) -> Sentence:
    """State the greatest and the least cost of privacy over the strategies."""
    most = _cost(summary, pairs[-1], len(pairs))
    if len(pairs) < 2:
        return say("privacy costs accuracy for {most}.", most=most)
    return say(
        "privacy costs most accuracy for {most}. It costs least for {least}. Each strategy is "
        "compared by its most accurate configurations; the tests compare with and without privacy, "
        "not strategies.",
        most=most, least=_cost(summary, pairs[0], len(pairs)),
    )  # fmt: skip


def _cost(summary: Summary, pair: _Pair, comparisons: int) -> Sentence:
    verdict = compare(pair.private, pair.plain, "accuracy", comparisons)
    gap = say("{gap}, ", gap=facts.gap(pair.private, pair.plain))
    return say(
        "{who}: {lost}from {theirs} to {mine} at {epsilon}{hedge}{seeds}",
        lost=gap if pair.gap > 0 else say("nothing, "),
        who=_name(summary, pair.private), mine=facts.accuracy(pair.private),
        epsilon=_epsilon(pair.private), theirs=facts.accuracy(pair.plain),
        hedge=verdict.hedge(), seeds=facts.other_seeds(pair.private, pair.plain),
    )  # fmt: skip


def _name(summary: Summary, row: Row) -> Name:
    """Name a strategy without the options that private runs and others have each for themselves."""
    models = {_key(other)[-1] for other in summary.rows}
    parts = [row.group.strategy, *([_key(row)[-1]] if len(models) > 1 else [])]
    workers = f" with {plural(row.workers, 'worker')}" if row.workers > 1 else ""
    return Name(" · ".join(parts) + workers)


def leader(summary: Summary, choice: Choice) -> Sentence:
    """State the ε of the leading configuration, and the range of all, where they differ."""
    spent = [(row, value) for row in choice.candidates if (value := _spent(row)) is not None]
    mine = _spent(choice.leader)
    if mine is None or len({write_bound(value, 2) for _, value in spent}) < 2:
        return say("")
    least, most = (f(spent, key=lambda pair: pair[1])[0] for f in (min, max))
    return say(
        "{who} was planned for {mine}; the configurations differ in this, from {low} ({least}) to "
        "{high} ({most}).",
        who=who(summary, choice.leader), mine=_epsilon(choice.leader), low=_epsilon(least),
        least=who(summary, least), high=_epsilon(most), most=who(summary, most),
    )  # fmt: skip


def _left(summary: Summary, private: Sequence[Row]) -> Sentence:
    """State the accuracy at the least and at the greatest ε, where no other run is beside them."""
    least, most = (f(private, key=lambda row: _spent(row) or 0) for f in (min, max))
    if str(_epsilon(least)) == str(_epsilon(most)):
        low, high = (f(private, key=_accuracy) for f in (min, max))
        return say(
            "at {epsilon} the accuracy is {low} ({one}) to {high} ({other}).",
            epsilon=_epsilon(low), low=facts.accuracy(low), one=who(summary, low),
            high=facts.accuracy(high), other=who(summary, high),
        )  # fmt: skip
    few, many = (
        max((r for r in private if _spent(r) == _spent(end)), key=_accuracy)
        for end in (least, most)
    )
    return say(
        "at {small} the accuracy is {few} ({one}), at {large} it is {many} ({other}).",
        small=_epsilon(few), few=facts.accuracy(few), one=who(summary, few),
        large=_epsilon(many), many=facts.accuracy(many), other=who(summary, many),
    )  # fmt: skip


def _epsilon(row: Row) -> Sentence:
    value, runs = _spent(row) or 0.0, [typical_run(row)]
    stated = fact("epsilon", value, how="derived", runs=runs, text=write_bound(value, 2))
    return say("ε = {stated}", stated=stated)


def _spent(row: Row) -> float | None:
    """Return the ε of a configuration that keeps what it states."""
    run = typical_run(row)
    return cost(run) if sound(run) else None


def _accuracy(row: Row) -> float:
    assert row.accuracy is not None
    return row.accuracy.median
