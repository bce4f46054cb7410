"""Why times and speed-ups should not be relied on: disturbed, profiled, implausible runs."""

from __future__ import annotations

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import percent, some
from manyhands.report.wording.sentences import Sentence, capitalised, fact, listed, say


def doubts(summary: Summary) -> tuple[Sentence, ...]:
    """Return why times and speed-ups should not be relied on; page and `compare` say the same."""
    states = some(
        _implausible(summary), _robbed(summary), _beside(summary), _profiled(summary),
        _references(summary),
    )  # fmt: skip
    return tuple(capitalised(state) for state in states)


def _runs(summary: Summary) -> list[Run]:
    return [run for row in summary.rows for run in row.runs]


def _implausible(summary: Summary) -> Sentence:
    """Name the speed-ups that are more than so many workers can give."""
    rows = [row for row in summary.rows if row.implausible]
    if not rows:
        return say("")
    most = max(rows, key=lambda row: (row.against_reference or 0) / row.workers)
    return say(
        "{who} was {pace} as fast as its reference, more than {workers} can give. "
        "Something slowed the reference. Such speed-ups are not shown. Repeat this on a quiet "
        "machine, or with one thread per worker (--threads), which removes the comparison with "
        "threads.",
        who=facts.who(summary, most), workers=facts.workers(most),
        pace=facts.against_reference(most, "{:.3g} times".format),
    )  # fmt: skip


def _robbed(summary: Summary) -> Sentence:
    """Say so if other programs had the cores while runs were timed."""
    runs = _runs(summary)
    robbed = [run for run in runs if run.starved]
    if not robbed:
        return say("")
    most = max(run.robbed for run in robbed)
    judged = [run for run in runs if run.judged]
    fewer = len(judged) < len(runs)
    return say(
        "Other programs slowed {some} of {the}{all}{had}: in the worst, a worker had no core for "
        "at least {most} of its computing time. Do not rely on the times of these runs.",
        some=facts.count(robbed, ""), all=facts.count(judged), the="the " if fewer else "",
        had=" that had a core for each process" if fewer else "",
        most=fact(
            "computing without a core", most, how="derived", runs=robbed, text=percent(most)
        ),
    )  # fmt: skip


def _beside(summary: Summary) -> Sentence:
    """Say so if several of the runs shared a machine."""
    runs = _runs(summary)
    beside = [run for run in runs if run.beside]
    if not beside:
        return say("")
    return say(
        "Another run used the same machine during {some}{all}.",
        some="all " if len(beside) == len(runs) else say("{n} of ", n=facts.count(beside, "")),
        all=facts.count(runs),
    )  # fmt: skip


def _profiled(summary: Summary) -> Sentence:
    profiled = [run for run in _runs(summary) if run.profiled]
    if not profiled:
        return say("")
    return say(
        "{some} profiled. The profiler can take most of such a time, so no speed-up is shown.",
        some=say("{runs} {were}", runs=facts.count(profiled),
                 were="was" if len(profiled) == 1 else "were"),
    )  # fmt: skip


def _references(summary: Summary) -> Sentence:
    """Name the configurations that speed-ups are against and that were disturbed."""
    bases = [summary.row_of(row.reference) for row in summary.rows
             if row.shown_speedup is not None and row.reference != row.runs]  # fmt: skip
    rows = list({id(base): base for base in bases if base and base.disturbed}.values())
    if not rows:
        return say("")
    return say(
        "Speed-ups compare with disturbed runs of {names}.",
        names=listed([facts.who(summary, row) for row in rows]),
    )


def disturbed_clause(row: Row) -> Sentence:
    """Return the sentence that follows a claim about a configuration with disturbed runs."""
    if not row.disturbed:
        return say("")
    if len(row.runs) == 1:
        return say(" Its run was disturbed.")
    if len(row.disturbed) == len(row.runs):
        if len(row.runs) == 2:
            return say(" Both its runs were disturbed.")
        return say(" All its {all} were disturbed.", all=facts.count(row.runs))
    return say(
        " {some} of its {all} {were} disturbed.", some=facts.count(row.disturbed, ""),
        all=facts.count(row.runs), were="was" if len(row.disturbed) == 1 else "were",
    )  # fmt: skip
