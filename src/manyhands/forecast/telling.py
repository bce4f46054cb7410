"""Forecasts as text and as a picture; measurements beside them where there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
HEAD = ("strategy", "workers", "step", "speed-up", "computing", "waiting", "talking", "staleness")


def cells(row: Row) -> list[str]:
    """Return one forecast as texts, in the order of `HEAD`."""
    stale = row["staleness"]
    return [
        row["label"],
        f"{row['workers']:,}",
        _seconds(row["step"]),
        _times(row["speedup"]),
        *(f"{100 * row[part] / row['step']:.0f} %" for part in ("compute", "wait", "communicate")),
        "–" if stale is None else f"{stale:,.1f}",
    ]


def speedups(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the speed-ups as a table: a line per strategy, a column per number of workers."""
    counts = sorted({row["workers"] for row in rows})
    known = {(row["label"], row["workers"]): row["speedup"] for row in rows}
    labels = list(dict.fromkeys(row["label"] for row in rows))
    return ["speed-up with", *(f"{count:,}" for count in counts)], [
        [label, *(_times(known.get((label, count))) for count in counts)] for label in labels
    ]


def _times(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _seconds(value: float) -> str:
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if value < 1000 * scale or unit == "s":
            return f"{value / scale:.3g} {unit}" if value < 1000 else f"{value:,.0f} s"
    raise AssertionError(value)


def aligned(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *lines)
    )


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    ruled = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ruled, *lines))


def compared(rows: Sequence[Row]) -> list[list[str]]:
    """Return rows of prediction and measurement as texts: label, workers, both, error."""
    return [
        [
            row["label"],
            str(row["workers"]),
            f"{row['measured']:.2f}",
            f"{row['speedup']:.2f}",
            f"{100 * row['error']:+.1f} %",
        ]
        for row in rows
    ]


def figure(rows: Sequence[Row], path: Path, *, measured: Sequence[Row] = ()) -> None:
    """Draw speed-up against workers, a line per strategy; measurements as dots."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(7.5, 4.8), layout="constrained")
    axis = canvas.subplots()
    labels = list(dict.fromkeys(row["label"] for row in [*rows, *measured]))
    most = max(row["workers"] for row in [*rows, *measured])
    for number, name in enumerate(labels):
        line = [(r["workers"], r["speedup"]) for r in rows if r["label"] == name]
        dots = [(r["workers"], r["measured"]) for r in measured if r["label"] == name]
        colour, style = f"C{number % 10}", "-" if number < 10 else "--"
        if line:
            axis.plot(*zip(*line, strict=True), style, color=colour, label=name, lw=1.5)
        if dots:
            axis.plot(*zip(*dots, strict=True), "o", color=colour, ms=6, mec="white")
    axis.plot([1, most], [1, most], ":", color="grey", label="ideal")
    if most > 16:
        axis.set(xscale="log", yscale="log")
    title = "lines: predicted; dots: measured" if measured else "predicted"
    axis.set(xlabel="workers", ylabel="speed-up", title=title)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    canvas.savefig(path)
