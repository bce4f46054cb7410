"""The line "Compared: …": strategies, workers, model, data, machine and repeats."""

from __future__ import annotations

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.summary import Summary
from manyhands.report.records.fields import text
from manyhands.report.wording.sentences import Name, Sentence, listed, say


def what_was_compared(summary: Summary) -> tuple[Sentence, ...]:
    """Say what was compared: strategies, workers, model, data, machine, repeats."""
    rows = summary.rows
    if not rows:
        return ()
    runs = [run for row in rows for run in row.runs]
    names = listed([Name(name) for name in dict.fromkeys(run.strategy for run in runs)])
    counts = facts.numbers(rows, lambda row: facts.workers(row, ""))
    several = any(row.workers > 1 for row in rows)
    found = [say("{names} with {counts} {noun}", names=names, counts=counts,
                 noun="workers" if several else "worker")]  # fmt: skip
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
