"""Test accuracy by strategy and learning rate: a sweep's table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from sweeps import rows_of


def table(folder: Path) -> str:
    """Return the table as Markdown: medians, with the range where there are several seeds."""
    _, runs = rows_of(folder)
    rates = sorted({run["lr"] for run in runs})
    lines = ["| strategy | " + " | ".join(f"{rate:g}" for rate in rates) + " |"]
    lines.append("|" + "---|" * (len(rates) + 1))
    for name in dict.fromkeys(map(_name, runs)):
        cells = [
            _told([100 * r["accuracy"] for r in runs if (_name(r), r["lr"]) == (name, lr)])
            for lr in rates
        ]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def _name(run: Mapping[str, Any]) -> str:
    often = f", every {run['period']} steps" if run.get("period") else ""
    apart = ", asynchronous" if run.get("asynchronous") else ""
    return f"{run['strategy']}{often}{apart}"


def _told(accuracies: list[float]) -> str:
    if not accuracies:
        return "–"
    extent = f" ({min(accuracies):.2f} to {max(accuracies):.2f})" if len(accuracies) > 1 else ""
    return f"{median(accuracies):.2f} %{extent}"


WRITERS = {"rates": table}
