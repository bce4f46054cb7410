"""The analysis of docs/partitioning.md, from its records: tables, a picture, conclusions.

Rules write the conclusions from the records. What a partition costs is in the report's sentences.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from sweeps import rows_of

from manyhands.data.fixed_shards import skew
from manyhands.report.analysis.option_values import compare
from manyhands.report.analysis.significance import method
from manyhands.report.analysis.summarise import summarise
from manyhands.report.figures.option_cost import comment, sentences
from manyhands.report.records.load import read


@dataclass(frozen=True)
class Cell:
    """One strategy with one partition and one number of workers, over its seeds."""

    strategy: str
    partition: str
    workers: int
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    seconds: float
    speedup: float | None

    @property
    def median(self) -> float:
        """The median accuracy."""
        return statistics.median(self.accuracy)


@cache
def cells(folder: Path) -> tuple[Cell, ...]:
    """Read the sweep: every configuration with several seeds."""
    rows, runs = rows_of(folder)
    read = []
    for row in rows:
        mine = [
            r
            for r in runs
            if all(r[k] == row[k] for k in ("strategy", "partition", "workers"))
            and r["status"] == "finished"
        ]
        read.append(
            Cell(
                row["strategy"],
                row["partition"],
                row["workers"],
                tuple(r["accuracy"] for r in mine),
                tuple(r["loss"] for r in mine),
                row["seconds"],
                row["speedup"],
            )
        )
    return tuple(read)


def strategies(found: Iterable[Cell]) -> list[str]:
    return [s for s in dict.fromkeys(c.strategy for c in found) if s != "sequential"]


def _pivot(folder: Path, value: Callable[[Cell], str]) -> str:
    """Return a table with a row for each partition and a column for each strategy and P."""
    found = cells(folder)
    columns = list(dict.fromkeys((c.strategy, c.workers) for c in found))
    order = {"sequential": 0} | {s: i + 1 for i, s in enumerate(strategies(found))}
    columns.sort(key=lambda column: (order[column[0]], column[1]))
    kinds = list(dict.fromkeys(c.partition for c in found))
    at = {(c.strategy, c.workers, c.partition): value(c) for c in found}
    heads = [s if s == "sequential" else f"{s}, P={p}" for s, p in columns]
    lines = ["| partition | " + " | ".join(heads) + " |", "|" + "---|" * (len(heads) + 1)]
    for kind in kinds:
        mine = [at.get((*column, kind), "") for column in columns]
        lines.append(f"| {kind} | {' | '.join(mine)} |")
    return "\n".join(lines)


def accuracy(folder: Path) -> str:
    """Return the accuracies, and the picture that `picture` draws of them."""
    shown = _pivot(folder, lambda c: f"{100 * c.median:.2f}{_range(c.accuracy, 100, 2)}")
    return f"{shown}\n\n![accuracy by partition](images/partitioning.png)"


def loss(folder: Path) -> str:
    return _pivot(folder, lambda c: f"{statistics.median(c.loss):.3f}{_range(c.loss, 1, 3)}")


def time(folder: Path) -> str:
    def shown(c: Cell) -> str:
        return f"{c.seconds:.1f}" + ("" if c.speedup is None else f" ({c.speedup:.2f}×)")

    return _pivot(folder, shown)


def _range(values: Sequence[float], scale: float, digits: int) -> str:
    if len(values) < 2:
        return ""
    return f" ({scale * min(values):.{digits}f}–{scale * max(values):.{digits}f})"


def division(folder: Path) -> str:
    """Return the examples of each worker, from one run of each partition and number of workers.

    They are the same for every strategy.
    """
    heads = ["partition", "workers", "examples per worker", "used", "used more than once", "skew"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    told: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(folder.glob("runs/*/run.json")):
        record = json.loads(path.read_text())
        kind = (record["config"]["partition"], record["config"]["workers"])
        if record["status"] == "finished" and record["config"]["seed"] == 0:
            told.setdefault(kind, record["partition"] | {"of": record["data"]["train"]})
    for (kind, workers), one in sorted(told.items(), key=lambda item: (item[0][1], item[0][0])):
        each = sorted(w["examples"] for w in one["workers"])
        sizes = f"{each[0]:,}" if each[0] == each[-1] else f"{each[0]:,} to {each[-1]:,}"
        far = statistics.fmean(s or 0 for s in skew([w["classes"] for w in one["workers"]]))
        seen, twice = one["seen"] / one["of"], one["twice"] / one["of"]
        lines.append(f"| {kind} | {workers} | {sizes} | {seen:.1%} | {twice:.1%} | {far:.3f} |")
    return "\n".join(lines)


def conclusion(folder: Path) -> str:
    """Return conclusions on performance, efficiency, scalability and robustness."""
    found = [c for c in cells(folder) if c.strategy != "sequential"]
    several = [c for c in found if c.workers > 1]
    told = [
        ("Performance", _performance(folder)),
        ("Efficiency", _efficiency(several)),
        ("Scalability", _scalability(several)),
        ("Robustness", _robustness(several)),
    ]
    return "\n".join(f"- **{head}.** {text}" for head, text in told if text)


def _performance(folder: Path) -> str:
    """Return the report's own sentences, so that page and report cannot differ."""
    compared = compare(summarise(read([folder])))
    if compared is None:
        return ""
    first, *more = sentences(compared)
    if all(len(cell.row.runs) == 1 for cell in compared.cells):
        return _nest(first, [*more, comment(compared)[0]])
    tested = (
        f"Each difference from {compared.reference} was tested as one of {len(compared.others)} "
        f"comparisons. {method()}"
    )
    return _nest(first, [*more, tested])


def _by(found: Iterable[Cell]) -> dict[tuple[str, int], list[Cell]]:
    cases: dict[tuple[str, int], list[Cell]] = {}
    for cell in found:
        cases.setdefault((cell.strategy, cell.workers), []).append(cell)
    return cases


def _drops(found: Sequence[Cell]) -> list[tuple[Cell, float]]:
    """Return each other way of dividing, and how far it is below the balanced one."""
    drops = []
    for mine in _by(found).values():
        even = next((c for c in mine if c.partition == "balanced"), None)
        drops += [(c, even.median - c.median) for c in mine if even and c is not even]
    return drops


def _efficiency(found: Sequence[Cell]) -> str:
    """Say whether the way of dividing costs time."""
    ratios = {}
    for case, mine in _by(found).items():
        # An uneven shard makes its worker compute longer in every step.
        times = {c.partition: c.seconds for c in mine}
        slow, fast = max(times, key=times.__getitem__), min(times, key=times.__getitem__)
        ratios[case] = (times[slow] / times[fast], slow, fast)
    if not ratios:
        return ""
    (strategy, workers), (ratio, slow, fast) = max(ratios.items(), key=lambda item: item[1][0])
    return (
        f"The partition changes the time most for {strategy} with {workers} workers: {slow} takes "
        f"{ratio:.2f} times as long as {fast}. In the median over strategies and numbers of "
        "workers, the slowest partition takes "
        f"{statistics.median(r for r, _, _ in ratios.values()):.2f} times as long as the fastest."
    )


def _scalability(found: Sequence[Cell]) -> str:
    said = []
    for strategy in strategies(found):
        parts = []
        for workers in sorted({c.workers for c in found if c.strategy == strategy}):
            ups = [
                c.speedup
                for c in found
                if (c.strategy, c.workers) == (strategy, workers) and c.speedup
            ]
            if ups:
                parts.append(f"{min(ups):.2f} to {max(ups):.2f} with {workers} workers")
        if parts:
            said.append(f"{strategy}: {', '.join(parts)}")
    return _nest("The lowest and the highest speed-up over the partitions:", said) if said else ""


def _nest(head: str, items: Sequence[str]) -> str:
    """Return a line with a list below it."""
    return "\n    - ".join([head, *items])


def _robustness(found: Sequence[Cell]) -> str:
    """Rank the strategies by what the worst partition costs them."""
    drops = _drops(found)
    worst = {}
    for strategy in strategies(found):
        mine = [d for d in drops if d[0].strategy == strategy]
        if mine:
            worst[strategy] = max(mine, key=lambda d: d[1])
    if not worst:
        return ""
    ranked = sorted(worst.items(), key=lambda item: item[1][1])
    parts = [
        f"{s}: {100 * drop:.2f} ({cell.partition}, {cell.workers} workers)"
        for s, (cell, drop) in ranked
    ]
    head = "A partition costs each strategy at most, in percentage points, least first:"
    return _nest(head, parts)


def picture(folder: Path, path: Path) -> None:
    """Draw the accuracies: a panel for each strategy, the partitions side by side."""
    found = cells(folder)
    names = strategies(found)
    kinds = list(dict.fromkeys(c.partition for c in found if c.strategy != "sequential"))
    canvas = Figure(figsize=(4 * len(names), 4), layout="constrained")
    panels = canvas.subplots(1, len(names), sharey=True, squeeze=False)[0]
    counts = sorted({c.workers for c in found if c.strategy != "sequential"})
    for panel, name in zip(panels, names, strict=True):
        for i, workers in enumerate(counts):
            mine = [c for c in found if (c.strategy, c.workers) == (name, workers)]
            x = [kinds.index(c.partition) + 0.16 * (i - (len(counts) - 1) / 2) for c in mine]
            y = [100 * c.median for c in mine]
            low = [100 * (c.median - min(c.accuracy)) for c in mine]
            high = [100 * (max(c.accuracy) - c.median) for c in mine]
            panel.errorbar(x, y, [low, high], fmt="o^Ds"[i % 4], label=f"P = {workers}", ms=5)
        panel.set_title(name)
        panel.set_xticks(range(len(kinds)), kinds, rotation=60, ha="right")
        panel.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    panels[0].legend()
    canvas.savefig(path, dpi=110)


WRITERS: dict[str, Callable[[Path], str]] = {
    "accuracy": accuracy,
    "loss": loss,
    "time": time,
    "division": division,
    "conclusion": conclusion,
}
