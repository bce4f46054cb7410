"""The rows of a committed sweep: from its runs, or from the CSV files of its report alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from manyhands.report import results


def rows_of(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a sweep's rows, one per configuration, and its runs."""
    if (folder / "runs").is_dir():
        found = results([folder])
        return [{name: row[name] for name in found.columns} for row in found], list(found.runs)
    return _read(folder / "results.csv"), _read(folder / "runs.csv")


def _read(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text or None
