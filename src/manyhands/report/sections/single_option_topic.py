"""What one option alone changes in time: how a model is cut, micro-batches, balance; a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.significance import compare, pairs
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.wording.formatting import option
from manyhands.report.wording.sentences import Name, Sentence, capitalised, fact, listed, say

OPTIONS = ("cut", "micro_batches", "transport", "slices", "balance")
SPLIT = ("pipeline", "tensor")  # strategies that divide the model


def sentences(summary: Summary) -> Iterable[Sentence]:
    """Say what splitting the model costs, and what each option changes where all else is alike."""
    found = [sentence for name in OPTIONS if (sentence := _changed(summary, name))]
    if found:
        yield from _split(summary)
    yield from found


def _split(summary: Summary) -> Iterable[Sentence]:
    """Compare the fastest way of splitting the model with the sequential run."""
    found = [
        (row, base)
        for row in summary.rows
        if row.group.strategy in SPLIT and row.shown_speedup and row.seconds
        and (base := summary.row_of(row.reference)) and base.group.strategy == "sequential"
    ]  # fmt: skip
    if not found:
        return
    row, base = min(found, key=lambda pair: _seconds(pair[0]))
    yield say(
        "The fastest way of splitting the model, {who}, takes {time}, and the sequential run "
        "{other}{hedge}.",
        who=facts.who(summary, row), time=facts.time(row), other=facts.time(base),
        hedge=compare(row, base, "seconds", len(found)).hedge(),
    )  # fmt: skip


def _changed(summary: Summary, name: str) -> Sentence:
    """State the times for all values of an option, where they differ most."""
    held = list(_alike(summary, name))
    if not held:
        return say("")
    rows = max(held, key=lambda rows: (len(rows), _ratio(rows)))
    first, *others = rows
    slow, fast = (f(rows, key=_seconds) for f in (max, min))
    verdict = compare(slow, fast, "seconds", len(held) * pairs(len(rows)))
    return say(
        "{who} takes {time}; all else alike, {others}{hedge}.{same}", who=facts.who(summary, first),
        time=facts.time(first), hedge=verdict.hedge(), same=_same(rows, name),
        others=listed([
            say("{t} with {value}", t=facts.time(row), value=_value(row, name)) for row in others
        ]),
    )  # fmt: skip


def _same(rows: Sequence[Row], name: str) -> Sentence:
    """Say which values divided the model in the same way: their times differ by chance alone."""
    if name != "cut":
        return say("")
    by_layers: dict[str, list[Row]] = {}
    for row in rows:
        if stages := row.runs[0].facts.get("stages"):
            layers = str([stage.get("layers") for stage in stages])
            by_layers.setdefault(layers, []).append(row)
    alike = max(by_layers.values(), key=len, default=[])
    if len(alike) < 2:
        return say("")
    return say(
        " {values} cut the model at the same layer, so their difference is chance.",
        values=capitalised(listed([say("{v}", v=_value(row, name)) for row in alike])),
    )


def _alike(summary: Summary, name: str) -> Iterator[Sequence[Row]]:
    """Return the undisturbed rows of several values of an option that agree in all else."""
    sets: dict[object, list[Row]] = {}
    for row in summary.rows:
        if name in row.group.options and row.seconds and not row.disturbed:
            rest = tuple((k, str(v)) for k, v in row.group.options.items() if k != name)
            key = (row.group.source, row.computer, row.group.strategy, row.x, rest)
            sets.setdefault(key, []).append(row)
    for rows in sets.values():
        if len({str(row.group.options[name]) for row in rows}) > 1:
            yield sorted(rows, key=lambda row: _order(row.group.options[name]))


def _order(value: object) -> tuple[bool, float, str]:
    number = float(value) if isinstance(value, int | float) else 0.0
    return value not in (None, "none"), number, str(value)


def _value(row: Row, name: str) -> object:
    """Name an option's value; a number is a fact of the runs."""
    value, spoken = row.group.options[name], name.replace("_", " ")
    if isinstance(value, str) and value != "none":
        return say("{spoken} {value}", spoken=spoken, value=Name(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return option(name, value)
    number = fact("option", value, runs=row.runs, text=f"{value:g}", parameters={"name": name})
    return say("{spoken} {number}", spoken=spoken, number=number)


def _seconds(row: Row) -> float:
    return row.seconds.median if row.seconds else 0.0


def _ratio(rows: Sequence[Row]) -> float:
    times = [_seconds(row) for row in rows]
    return max(times) / min(times)
