"""Forecasts as text and as a picture; measurements beside them where there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.report.analysis.summary import IMPOSSIBLE

if TYPE_CHECKING:
    from manyhands.experiments.forecast.uncertainty import Uncertainty

Row = Mapping[str, Any]
STALE = 0.5  # updates from which a gradient is called stale, on average
DIVERGING = 16  # … and from which training may well diverge
HEAD = (
    "strategy", "workers", "step", "speed-up", "range", "computing", "waiting", "talking",
    "staleness",
)  # fmt: skip


def format_row(row: Row) -> list[str]:
    """Return one forecast as texts, in the order of `HEAD`."""
    stale = row["staleness"]
    return [
        row["label"],
        f"{row['workers']:,}",
        _format_seconds(row["step"]),
        _format_times(row["speedup"]),
        format_range(row),
        *(f"{100 * row[part] / row['step']:.0f} %" for part in ("compute", "wait", "communicate")),
        "–" if stale is None else f"{stale:,.1f}",
    ]


def format_range(row: Row) -> str:
    """Return between what the speed-up lies."""
    if row["bound"]:
        return f"at most {_format_times(row['high'])}"
    return f"{_format_times(row['low'])} to {_format_times(row['high'])}"


def describe_error(
    doubt: Uncertainty, most: int, rows: Sequence[Row], *, network: bool
) -> list[str]:
    """Return what is known of the error, and from where on forecasts are extrapolations."""
    if doubt.largest is None or doubt.median is None:
        lines = ["error: unknown, since this calibration has nothing to hold out; measure again"]
    else:
        lines = [
            f"error at {len(doubt.errors)} measurements that were held out: median "
            f"{100 * doubt.median:.0f} %, largest {100 * doubt.largest:.0f} %, which the ranges "
            "allow for"
        ]
    if any(row["extrapolated"] for row in rows):
        where = "on a network" if network else f"beyond the {most} processes that were measured"
        lines.append(
            f"{where} all is extrapolated; the ranges span every growth of the cost of talking "
            f"that explains the measurements ({', '.join(doubt.growths)})"
        )
    return [*lines, *describe_disturbance(doubt, rows)]


def describe_disturbance(doubt: Uncertainty, rows: Sequence[Row]) -> list[str]:
    """Return why the measurements should not be relied on; nothing where they may be."""
    lines = []
    if doubt.disturbed and doubt.without_core is not None:
        lines.append(
            "warning: measured on a busy machine: forecasts may be wrong by more than stated. "
            f"Other programs had a worker's core for up to {100 * doubt.without_core:.0f} % of a "
            "measurement; measure again on a quiet machine"
        )
    possible = [row for row in rows if not row["bound"]]
    row = max(possible, key=_share_of_possible, default=None)
    if row is not None and _share_of_possible(row) >= IMPOSSIBLE:
        lines.append(
            f"warning: {_name(row)} would be {_format_times(row['speedup'])} times as fast as the "
            f"sequential, more than {_count(row['processes'], 'process', 'es')} can give. "
            "Something slowed the measurement of the sequential; measure again on a quiet machine, "
            "or with --threads 1"
        )
    return lines


def find_objections(row: Row, others: Sequence[Row] = (), *, disturbed: bool) -> list[str]:
    """Return why the measurements do not support that a row is the best; [] where they do.

    Args:
        row: The fastest row.
        others: The fastest of each strategy; a stale one is no rival of a row that is not.
        disturbed: Whether other programs had the cores while it was measured.
    """
    found = []
    if _share_of_possible(row) >= IMPOSSIBLE:
        found.append("such a speed-up is impossible")
    if disturbed:
        found.append("the machine was busy while it was measured")
    if row["workers"] > 1 and row["low"] <= 1:
        found.append("within the error it may be no faster than one worker")
    rivals = [
        r for r in others if r["workers"] > 1 and not r["bound"] and r["label"] != row["label"]
    ]
    if close := [r for r in rivals if r["high"] >= row["low"] and _is_stale(r) <= _is_stale(row)]:
        rest = f" and {_count(len(close) - 1, 'other')}" if len(close) > 1 else ""
        found.append(f"within the error {_name(close[0])}{rest} may be as fast")
    return found


def _share_of_possible(row: Row) -> float:
    return float(row["speedup"] / row["processes"])


def describe_best(
    top: Row | None,
    fresh: Row | None,
    batch_size: int,
    others: Sequence[Row] = (),
    *,
    disturbed: bool = False,
) -> list[str]:
    """Return which row is the best, what speaks against it, and which faster rows it skips.

    Args:
        top: The fastest row.
        fresh: The fastest without stale gradients.
        batch_size: What was asked for.
        others: The fastest row of each strategy.
        disturbed: Whether other programs had the cores while it was measured.
    """
    bounds = [row for row in others if row["bound"]]
    if top is None:
        return []
    if top["bound"]:
        return [f"no forecast; the {_describe_row('highest upper bound', top, batch_size)}"]
    if not _is_stale(top):
        objections = find_objections(top, others, disturbed=disturbed)
        named = _describe_row("best", top, batch_size, objections)
        return [named, *_describe_skipped(bounds, top)]
    old, against = round(top["staleness"]), find_objections(top, others, disturbed=disturbed)
    cost = "it may diverge" if old >= DIVERGING else "updates are worth less; how much is unknown"
    lines = [
        f"{_describe_row('fastest', top, batch_size, against)}; but a gradient would be {old:,} "
        f"update{'s' if old > 1 else ''} old on average: {cost}"
    ]
    if fresh is not None:
        kind = "highest upper bound" if fresh["bound"] else "best"
        against = [] if fresh["bound"] else find_objections(fresh, others, disturbed=disturbed)
        kind += " without stale gradients"
        lines.append(_describe_row(kind, fresh, batch_size, against))
    return [*lines, *_describe_skipped(bounds, fresh or top)]


def _describe_skipped(bounds: Sequence[Row], named: Row) -> list[str]:
    """Name the upper bounds above the row that was named, and why they are not considered."""
    above = [r for r in bounds if r["speedup"] > named["speedup"]]
    if not above or named["bound"]:
        return []
    skipped = " and ".join(f"{_name(r)} ({_format_times(r['speedup'])} times)" for r in above)
    kind = "this is an upper bound" if len(above) == 1 else "these are upper bounds"
    return [
        f"skipped: {skipped}; {kind} only, since the messages within such a worker were not "
        "measured"
    ]


def _is_stale(row: Row) -> bool:
    return (row["staleness"] or 0.0) >= STALE


def _describe_row(kind: str, row: Row, batch_size: int, objections: Sequence[str] = ()) -> str:
    if objections and kind.startswith("best"):
        kind = f"no supported {kind}; the fastest"
    text = f"{kind}: {_name(row)}, {_format_times(row['speedup'])} times the sequential"
    text += f" ({format_range(row)}{', extrapolated' if row['extrapolated'] else ''})"
    if row["grown"]:
        text += f", with {row['update']:,} examples behind an update instead of {batch_size:,}"
    return "; ".join([text, *objections])


def _name(row: Row) -> str:
    return f"{row['label']} with {_count(row['workers'], 'worker')}"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number > 1 else ''}"


def tabulate_speedups(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the speed-ups as a table: a line per strategy, a column per number of workers."""
    counts = sorted({row["workers"] for row in rows})
    known = {(row["label"], row["workers"]): row["speedup"] for row in rows}
    labels = list(dict.fromkeys(row["label"] for row in rows))
    return ["speed-up with", *(f"{count:,}" for count in counts)], [
        [label, *(_format_times(known.get((label, count))) for count in counts)] for label in labels
    ]


def _format_times(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _format_seconds(value: float) -> str:
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if value < 1000 * scale or unit == "s":
            return f"{value / scale:.3g} {unit}" if value < 1000 else f"{value:,.0f} s"
    raise AssertionError(value)


def align(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *lines)
    )


def format_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    ruled = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ruled, *lines))


def tabulate_errors(rows: Sequence[Row]) -> list[list[str]]:
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


def draw_figure(rows: Sequence[Row], path: Path, *, measured: Sequence[Row] = ()) -> None:
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
