"""Each worker's share of the batch, where it follows the workers' speeds: the figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from manyhands.report.analysis import configuration_facts as facts
from manyhands.report.analysis.configuration_facts import over_repeats, who
from manyhands.report.analysis.configurations import recorded, typical_run
from manyhands.report.analysis.rounds import ratio
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.figures import theme
from manyhands.report.figures.chart import Note
from manyhands.report.records.fields import finite, sequence
from manyhands.report.records.runs import Run
from manyhands.report.wording.formatting import percent, times
from manyhands.report.wording.sentences import Fact, Sentence, listed, say


def shares(run: Run) -> list[tuple[float, list[float]]]:
    """Return (step, each worker's share of the whole) pairs."""
    found = []
    for pair in sequence(run.facts.get("shares")):
        if len(sequence(pair)) != 2:
            continue
        step = finite(pair[0])
        parts = [s for v in sequence(pair[1]) if (s := finite(v)) is not None]
        if step is not None and sum(parts) > 0:
            found.append((step, [part / sum(parts) for part in parts]))
    return found


def shown(summary: Summary) -> list[tuple[Row, list[Run]]]:
    """Return the configurations that recorded shares, and those repeats."""
    return recorded(summary, lambda row: [run for run in row.runs if shares(run)])


def draw(ax: Any, summary: Summary) -> list[Note]:
    """Draw each worker's share of the batch over the steps, where the shares differ most."""
    notes = []
    run = _drawn(summary)[1]
    pairs = shares(run)
    end = max(run.steps or 0, pairs[-1][0])
    for rank in range(max(len(parts) for _, parts in pairs)):
        mine = [(s, parts[rank]) for s, parts in pairs if rank < len(parts)]
        look = theme.style(rank)
        label = f"worker {rank}"
        ax.plot(
            *zip(*mine, (end, mine[-1][1]), strict=True), color=look.colour, linestyle=look.line,
            label=label, drawstyle="steps-post",
        )  # fmt: skip
        notes += [Note(label, f"step {s:g}", percent(v, 1), (s, v)) for s, v in mine]
    ax.yaxis.set_major_formatter(lambda value, _: percent(value))
    ax.set_ylim(bottom=0)
    return notes


def comment(summary: Summary) -> list[Sentence]:
    """Comment on how the shares moved, and what that brought."""
    row = _drawn(summary)[0]
    runs = next(found for each, found in shown(summary) if each is row)
    drawn, middle = ("one repeat of ", "median ") if len(row.runs) > 1 else ("", "")
    return [
        say(
            "The figure shows {drawn}{who}. The {middle}shares go from {first} to {last}{gained}.",
            drawn=drawn, who=who(summary, row), middle=middle,
            first=_parts(runs, 0), last=_parts(runs, -1), gained=_gained(summary, row),
        )
    ]  # fmt: skip


def _parts(runs: Sequence[Run], at: int) -> Sentence:
    """List the workers' shares at the first or at the last measurement."""
    workers = range(min(len(shares(run)[at][1]) for run in runs))

    def part(worker: int) -> Fact:
        return over_repeats(
            runs, "share of a worker", lambda run: shares(run)[at][1][worker], percent,
            worker=worker, measurement=at,
        )  # fmt: skip

    return listed([part(worker) for worker in workers])


def _drawn(summary: Summary) -> tuple[Row, Run]:
    """Return the configuration whose shares end furthest apart, and its middle repeat."""

    def uneven(pair: tuple[Row, list[Run]]) -> tuple[float, int]:
        last = [shares(run)[-1][1] for run in pair[1]]
        return median(len(parts) * (max(parts) - min(parts)) for parts in last), pair[0].workers

    row, runs = max(shown(summary), key=uneven)
    return row, typical_run(replace(row, runs=tuple(runs)))


def _gained(summary: Summary, row: Row) -> Sentence:
    """Say what balancing brought against the same workers without it, where both were run."""
    for other in summary.rows:
        alike = {**row.group.options, "balance": None} == {**other.group.options, "balance": None}
        same = (row.group.strategy, row.group.source, row.workers) == (
            other.group.strategy, other.group.source, other.workers,
        )  # fmt: skip
        plain = other.group.options.get("balance") == "none"
        same = same and row.computer == other.computer
        found = ratio("examples per second", row.runs, other.runs)
        if alike and same and plain and found:
            gain = facts.ranged(
                "examples per second", found, row.runs, other.runs, times, how="multiple"
            )
            return say("; examples per second are {gain} those of equal parts", gain=gain)
    return say("")
