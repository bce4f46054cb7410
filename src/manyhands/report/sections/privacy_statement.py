"""What private runs promise: the statement, and what all of them cost together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from manyhands.errors import ConfigError
from manyhands.privacy import accountant
from manyhands.privacy.statement import LABELS, describe
from manyhands.privacy.weights_provenance import key_id
from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configurations import name, typical_run
from manyhands.report.analysis.privacy_cost import events, sound
from manyhands.report.analysis.summary import Summary
from manyhands.report.records.fields import mapping, number, text
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import capital, count, join, some
from manyhands.report.wording.sentences import Fact, Name, Sentence, fact, say


def statements(summary: Summary) -> list[dict[str, Any]]:
    """Return each different statement as a block: who makes it, and its lines."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for row in summary.rows:
        if privacy := typical_run(row).privacy:
            lines = tuple(_lines(privacy, row.runs))
            found.setdefault(lines, []).append(name(summary, row))
    return [{"title": capital(join(who[:4])), "pairs": list(lines)} for lines, who in found.items()]


def _lines(privacy: Mapping[str, Any], runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    planned = number(privacy, "steps")
    for label, words in describe(privacy):
        more = _stopped(planned, runs) if label == LABELS["steps"] and planned is not None else ""
        yield label, f"{words}{more}"


def _stopped(planned: float, runs: Sequence[Run]) -> str:
    """Say so where runs stopped before the steps that ε was calculated for."""
    taken = sorted(run.steps for run in runs if run.steps is not None and run.steps < planned)
    if not taken:
        return ""
    ends = " to ".join(dict.fromkeys((count(taken[0]), count(taken[-1]))))
    return f" planned, and ε is the budget of these; the runs stopped after {ends}"


def sentences(summary: Summary) -> list[Sentence]:
    """Say what all runs promise together, and what the promise does not cover."""
    runs = summary.loaded.runs
    private = [run for run in runs if run.privacy]
    if not private:
        return []
    kept = [run for run in private if sound(run)]
    states = composed(summary)
    fixed = [run for run in private if not sound(run)]
    if fixed:
        count = facts.count(fixed)
        states.append(
            say("{count} with fixed keys: NOT PRIVATE; such runs are for tests.", count=count)
        )
    plain = [run for run in runs if not run.privacy]
    if plain and kept:
        states.append(
            say(
                "Beside them {count} without privacy: to publish those as well voids the guarantee "
                "of every record that they used.",
                count=facts.count(plain),
            )
        )
    states.append(
        say(
            "Accuracies and losses are those of the test set, which is not protected. Figures of "
            "the training examples are never shown; numbers of examples are the expected ones."
        )
    )
    return some(*states)


def composed(summary: Summary) -> list[Sentence]:
    """Say what all private runs cost together, for each set of training records."""
    kept = [run for run in summary.loaded.runs if run.privacy and sound(run)]
    return some(*(_together(runs) for runs in _by_records(kept)))


def _by_records(runs: list[Run]) -> list[list[Run]]:
    """Return the runs by their training records; a name proves nothing.

    Fingerprints tell records apart only if one key made all of them: if not, all runs are one set.
    """
    marks = [text(run.privacy, "fingerprint") for run in runs]
    if not all(marks) or len({key_id(mark) for mark in marks}) > 1:
        return [runs] if runs else []
    pairs = list(zip(marks, runs, strict=True))
    return [[run for mark, run in pairs if mark == one] for one in dict.fromkeys(marks)]


def _together(runs: list[Run]) -> Sentence:
    """Return the composed cost of all runs on one set of records; each of them spends."""
    spent = [events(run) for run in runs]
    deltas = [d for run in runs if (d := number(run.privacy, "delta")) is not None and 0 < d < 1]
    count = facts.count(runs, "")
    if not all(spent):
        return say(
            "What the {count} private runs cost together cannot be said: a record does not state "
            "its steps, its rate and its noise.",
            count=count,
        )
    if len(runs) < 2 or not deltas:
        return say("")
    delta = min(deltas)
    names = list(dict.fromkeys(each for run in runs if (each := text(run.data, "name"))))
    try:
        pld, rdp = (accountant.compose(chain(*spent), delta, way) for way in ("pld", "rdp"))
    except ConfigError as error:
        return say(
            "What all {count} runs cost together cannot be said: {why}.", count=count,
            why=Name(error),
        )  # fmt: skip

    def stated(what: str, value: float, shown: str) -> Fact:
        return fact(what, value, how="derived", runs=runs, text=shown)

    return say(
        "To publish all {count} private runs{on}, or one chosen among them, costs ε = {pld} at "
        "δ = {delta} ({rdp} by Rényi divergences), by the steps that were planned.",
        count=count, on=say(" on {data}", data=Name(join(names))) if names else "",
        pld=stated("composed epsilon by pld", pld, accountant.write_bound(pld, 3)),
        rdp=stated("composed epsilon by rdp", rdp, accountant.write_bound(rdp, 3)),
        delta=stated("least delta", delta, f"{delta:g}"),
    )  # fmt: skip


def published(summary: Summary) -> Mapping[str, Any]:
    """Return what the page shows of privacy; empty where no run is private."""
    if not any(run.privacy for run in summary.loaded.runs):
        return mapping(None)
    return {"sentences": sentences(summary), "blocks": statements(summary)}
