"""The line "Compared: …": strategies, workers, model, data, machine and repeats."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.records.fields import text
from manyhands.report.wording.sentences import Name, Sentence, listed, say


def what_was_compared(summary: Summary) -> tuple[Sentence, ...]:
    """Say what was compared: strategies, workers, model, data, machine, repeats."""
    rows = summary.rows
    if not rows:
        return ()
    runs = [run for row in rows for run in row.runs]
    found = [_who(rows)]
    for place, words in (("model", "model {name}"), ("data", "data {name}")):
        held = dict.fromkeys(text(getattr(run, place), "name") for run in runs)
        if known := [Name(name) for name in held if name and name != "<lambda>"]:
            found.append(say(words, name=listed(known)))
    if len({row.cores for row in rows}) == 1 and rows[0].cores:
        found.append(say("{cores}", cores=facts.cores(rows[0])))
    few, many = (f(rows, key=lambda row: len(row.runs)) for f in (min, max))
    times = say("{many}", many=facts.repeats(many.runs))
    if len(few.runs) < len(many.runs):
        times = say("{few} to {many}", few=facts.count(few.runs, ""), many=times)
    return (say("Compared: {all}.", all=listed([*found, times], "; ", "; ")),)


def _who(rows: Sequence[Row]) -> Sentence:
    """Name the strategies, each with its own numbers of workers: "sync and gossip with 2 and 4"."""
    held: dict[str, list[Row]] = {}
    for row in rows:
        held.setdefault(row.group.strategy, []).append(row)
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, mine in held.items():
        counts = tuple(sorted({row.workers for row in mine}))
        alike.setdefault(() if name == "sequential" else counts, []).append(name)
    parts = []
    for counts, names in alike.items():
        who = listed([Name(name) for name in names])
        if not counts:
            parts.append(say("{who}", who=who))
            continue
        mine = [row for name in names for row in held[name]]
        noun = "worker" if counts == (1,) else "workers"
        numbers = facts.numbers(mine, lambda row: facts.workers(row, ""))
        parts.append(say("{who} with {counts} {noun}", who=who, counts=numbers, noun=noun))
    return listed(parts, ", ", ", ")
