"""An option with many values that are not numbers: what each value costs, for each strategy.

Where such an option varies (ways of dividing the data, topologies …), every value is compared with
a reference: the same strategy, workers and other options with the reference value. The other
figures of the report then show the runs with the reference value alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from manyhands.report.analysis.significance import Verdict
from manyhands.report.analysis.significance import compare as compare_pair
from manyhands.report.analysis.summarise import summarise
from manyhands.report.analysis.summary import Row, Summary
from manyhands.report.wording.sentences import Name

FEWEST = 5  # values that make one curve each too many
OTHER_TASK = ("data",)  # a value of these is another task: its accuracy has no reference


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One configuration, beside the one with the reference value.

    Attributes:
        value: The option's value.
        row: The configuration.
        base: The configuration with the reference value and everything else the same.
        change: How much better it is than that, as a difference of medians; negative if worse.
        verdict: What the test says of the difference.
    """

    value: Name
    row: Row
    base: Row
    change: float
    verdict: Verdict | None = None

    @property
    def clear(self) -> bool:
        """Whether the difference is more than chance."""
        return self.verdict is not None and self.verdict.apart

    @property
    def strategy(self) -> str:
        """The strategy, with the other options that vary."""
        parts = [part for part in self.row.label.split(" · ") if part != self.value]
        return " · ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All values of one option, beside the reference.

    Attributes:
        option: The option.
        reference: The value that the others are compared with.
        values: Every value: the reference first, then by what it costs at most, least first.
        measure: What is compared: "accuracy" or "score".
        cells: The configurations, those with the reference value among them.
        rest: The summary of the runs with the reference value.
    """

    option: str
    reference: Name
    values: tuple[Name, ...]
    measure: str
    cells: tuple[Cell, ...]
    rest: Summary

    @property
    def spoken(self) -> str:
        """The option as a word."""
        return self.option.replace("_", " ")

    @property
    def metric(self) -> str:
        """The name of what is compared."""
        return "accuracy" if self.measure == "accuracy" else self.cells[0].row.runs[0].metric

    @property
    def others(self) -> tuple[Cell, ...]:
        """The configurations that do not have the reference value."""
        return tuple(cell for cell in self.cells if cell.value != self.reference)

    @property
    def series(self) -> tuple[tuple[str, int], ...]:
        """Strategies and numbers of workers, each pair once."""
        return tuple(dict.fromkeys((cell.strategy, cell.row.workers) for cell in self.cells))

    def at(self, value: str, series: tuple[str, int]) -> Cell | None:
        """Return the configuration with that value, strategy and number of workers."""
        for cell in self.cells:
            if (cell.value, (cell.strategy, cell.row.workers)) == (value, series):
                return cell
        return None


def compare(summary: Summary) -> Comparison | None:
    """Return the comparison of the values of an option that has many, if there is one."""
    option = _option(summary)
    if not option:
        return None
    measure = "accuracy" if any(row.accuracy for row in summary.rows) else "score"
    reference = _reference(summary, option)
    cells = _tested(_cells(summary, option, reference, measure), measure)
    if len({cell.value for cell in cells}) < FEWEST:
        return None
    worst = {
        value: min(cell.change for cell in cells if cell.value == value)
        for value in dict.fromkeys(cell.value for cell in cells)
    }
    order = sorted(worst, key=lambda value: (value != reference, -worst[value]))
    return Comparison(
        option=option, reference=Name(reference), values=tuple(order), measure=measure,
        cells=tuple(cells), rest=_rest(summary, option, reference),
    )  # fmt: skip


def _option(summary: Summary) -> str:
    """Return the option with the most values that are words; "" where none has many."""
    found = {}
    for axis in summary.layout.axes:
        held = [row.group.options.get(axis) for row in summary.rows]
        known = {value for value in held if value is not None}
        if axis not in OTHER_TASK and all(isinstance(value, str) for value in known):
            found[axis] = len(known)
    most = max(found, key=lambda axis: found[axis], default="")
    return most if found.get(most, 0) >= FEWEST else ""


def _reference(summary: Summary, option: str) -> str:
    """Return the sequential run's value, or else the first that the sweep was given."""
    held = [(row.group.strategy, row.group.options.get(option)) for row in summary.rows]
    parallel = [str(value) for name, value in held if name != "sequential" and value is not None]
    alone = [str(value) for name, value in held if name == "sequential" and value in parallel]
    given = [
        value
        for source in summary.loaded.sources
        for value in source.axes.get(option) or ()
        if value in parallel
    ]
    return str([*alone, *given, *parallel][0])


def _cells(summary: Summary, option: str, reference: str, measure: str) -> list[Cell]:
    rows = [
        row
        for row in summary.rows
        if row.group.strategy != "sequential" and getattr(row, measure) is not None
    ]
    rows = [row for row in rows if row.workers > 1] or rows
    bases = {_key(row, option): row for row in rows if row.group.options.get(option) == reference}
    better = 1 if measure == "accuracy" or summary.higher else -1
    cells = []
    for row in rows:
        base, value = bases.get(_key(row, option)), row.group.options.get(option)
        if base is not None and value is not None:
            change = getattr(row, measure).median - getattr(base, measure).median
            cells.append(Cell(value=Name(value), row=row, base=base, change=better * change))
    return cells


def _key(row: Row, option: str) -> str:
    """Return what two configurations share that differ in the option alone."""
    options = {name: value for name, value in row.group.options.items() if name != option}
    shared = [row.group.source, row.group.strategy, row.workers, row.x, options]
    return json.dumps(shared, sort_keys=True, default=str)


def _tested(cells: Sequence[Cell], measure: str) -> list[Cell]:
    """Mark what differs by more than chance; every value of every strategy is a comparison."""
    count = sum(cell.row is not cell.base for cell in cells)
    return [
        replace(cell, verdict=compare_pair(cell.row, cell.base, measure, count)) for cell in cells
    ]


def _rest(summary: Summary, option: str, reference: str) -> Summary:
    """Summarise the runs with the reference value, and those that do not have the option."""
    runs = [run for run in summary.loaded.runs if run.config.get(option) in (reference, None)]
    return summarise(replace(summary.loaded, runs=tuple(runs), problems=()))
