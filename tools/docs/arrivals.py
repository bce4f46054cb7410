"""Steps to a target accuracy against the workers, beside the 1/P of theory: a sweep's table."""

from __future__ import annotations

from pathlib import Path

from manyhands.report.analysis.summarise import summarise
from manyhands.report.figures.steps_to_target import curves
from manyhands.report.records.load import read


def table(folder: Path) -> str:
    """Return the table as Markdown: medians, with the range over the seeds."""
    head = ["strategy", "workers", "batch size", "steps to the target", "of those of 1 worker"]
    head += ["theory", "repeats"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for pairs in curves(summarise(read([folder]))).values():
        first, start = pairs[0]
        for row, got in pairs:
            line = [row.label, str(row.workers), str(row.runs[0].config["batch_size"])]
            line += [f"{got.median:,.0f} ({got.low:,.0f} to {got.high:,.0f})"]
            line += [f"{got.median / start.median:.2f}", f"{first.workers / row.workers:.2f}"]
            lines.append("| " + " | ".join([*line, str(len(row.runs))]) + " |")
    return "\n".join(lines)


WRITERS = {"steps": table}
