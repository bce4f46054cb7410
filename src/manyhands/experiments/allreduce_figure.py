"""Draws the times of the all-reduce benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def draw_figure(records: Sequence[Record], path: str | Path) -> None:
    """Draw time, bandwidth and bytes sent against size, one row per group size, into `path`."""
    from matplotlib.figure import Figure

    groups = sorted({record["workers"] for record in records})
    names = list(dict.fromkeys(record["algorithm"] for record in records))
    canvas = Figure(figsize=(13, 3.4 * len(groups) + 0.4), layout="constrained")
    axes = canvas.subplots(len(groups), 3, squeeze=False)
    panels = (
        ("microseconds", "time, µs (median)"),
        ("bandwidth", "array bytes / time, GB/s"),
        ("bytes_sent_each", "bytes each process sends"),
    )
    for row, workers in zip(axes, groups, strict=True):
        for axis, (field, label) in zip(row, panels, strict=True):
            for number, name in enumerate(names):
                _draw_line(axis, records, workers, name, field, f"C{number}")
            drawn = any(len(line.get_xdata()) for line in axis.lines)
            scale = "log" if drawn else "linear"  # nobody sends: shared memory, MPI's secret
            axis.set(xscale=scale, yscale=scale, xlabel="bytes of the array", ylabel=label)
            if not drawn:
                axis.set(xticks=[], yticks=[])
                where = {"transform": axis.transAxes, "ha": "center"}
                axis.text(0.5, 0.5, "no messages that could be counted", **where)
            axis.set_title(f"{workers} processes", fontsize="medium")
            axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize="small")
    canvas.savefig(path)


def _draw_line(
    axis: Any, records: Sequence[Record], workers: int, name: str, field: str, colour: str
) -> None:
    """Draw one algorithm's line; what theory says of the bytes is dotted."""
    mine = [r for r in records if (r["workers"], r["algorithm"]) == (workers, name) and r[field]]
    mine.sort(key=lambda record: record["bytes"])
    axis.plot(
        [r["bytes"] for r in mine], [r[field] for r in mine], "o-", ms=3, label=name, color=colour
    )
    if field == "bytes_sent_each":
        known = [r for r in mine if r["theory_bytes_each"]]
        axis.plot(
            [r["bytes"] for r in known], [r["theory_bytes_each"] for r in known], ":", color="black"
        )
