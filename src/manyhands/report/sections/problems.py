"""What went wrong: runs that failed or lost workers, records that are damaged or missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.report.analysis.summary import Summary
from manyhands.report.records.fields import clean, mapping, number, sequence
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import join, plural

LONGEST = 600  # of a failed run's message, in letters


def problems(summary: Summary) -> list[Mapping[str, Any]]:
    """Return what failed, could not be read, or was planned and is not there."""
    loaded = summary.loaded
    found: list[Mapping[str, Any]] = []
    if summary.failed:
        lines = [f"{_identity(run)}: {_reason(run)}" for run in summary.failed]
        found.append({"title": f"{plural(len(lines), 'run')} failed", "lines": lines})
    lines = [_befell(run, event) for run in loaded.runs for event in run.story]
    if lines := [line for line in lines if line]:
        title = "Runs that lost workers or were interrupted: their times are not of one group"
        found.append({"title": title, "lines": lines})
    for read, words in ((False, "could not be read"), (True, "could be read in part")):
        held = [problem for problem in loaded.problems if problem.read is read]
        lines = [clean(f"{problem.where} {problem.message}") for problem in held]
        if lines:
            found.append({"title": f"{plural(len(lines), 'record')} {words}", "lines": lines})
    for source in loaded.sources:
        if source.missing:
            title = f"{len(source.missing)} of {source.planned} planned runs have no record yet"
            found.append({"title": title, "lines": [", ".join(source.missing[:20])]})
    return found


def _befell(run: Run, event: Mapping[str, Any]) -> str:
    """Return what befell a run, in one line; "" where the record tells nothing that is known."""
    lost = [f"{rank:.0f}" for rank in sequence(event.get("lost")) if isinstance(rank, (int, float))]
    step = number(event, "step")
    if lost and step is not None:
        left = plural(int(number(event, "workers") or 0), "worker")
        heirs = "".join(map(_heir, sequence(event.get("taken_over"))))
        went = f"{left} went on from step {step:.0f}{heirs}"
        if "min_workers" in event:
            went = f"{left} left, too few to go on from step {step:.0f}"
        return f"{_identity(run)}: rank {join(lost)} died; {went}"
    for name, how in (("restarted_from", "started again"), ("resumed_from", "resumed")):
        if (step := number(event, name)) is not None:
            return f"{_identity(run)}: {how} from step {step:.0f}{_planned(event)}"
    return ""


def _planned(event: Mapping[str, Any]) -> str:
    """Return the length that a run had until then, where its learning rate had followed it."""
    lengths = mapping(event.get("planned"))
    planned = [
        f"{most}{plural(int(count), word)}"
        for name, most, word in (("epochs", "", "epoch"), ("max_steps", "at most ", "step"))
        if (count := number(lengths, name)) is not None
    ]
    return (
        f"; until then the learning rate was that of a run of {', '.join(planned)}"
        if planned
        else ""
    )


def _heir(taken: Any) -> str:
    """Return who took over a dead master's layers; "" where the record does not tell."""
    about = mapping(taken)
    by, names = number(about, "by"), sequence(about.get("layers"))
    layers = [clean(name) for name in names if isinstance(name, str)]
    return f"; rank {by:.0f} took over {join(layers)}" if by is not None and layers else ""


def _identity(run: Run) -> str:
    return f"{run.name} ({run.strategy}, {plural(run.workers, 'worker')}; {run.where})"


def _reason(run: Run) -> str:
    if run.finished:
        return "it finished, but its record states no training time"
    if not run.error:
        return "it left no message; its rank-N.log files may say more"
    return run.error if len(run.error) <= LONGEST else f"{run.error[:LONGEST]} …"
