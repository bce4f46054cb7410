"""Committed sweeps: their folders, and their rows from the runs or from the report's CSV files."""

from __future__ import annotations

import atexit
import csv
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from manyhands.report import results
from manyhands.report.records.archive import SUFFIX, unpacked

_UNPACKED = ExitStack()
atexit.register(_UNPACKED.close)


def folder_of(path: Path) -> Path:
    """Return a folder of records; a packed one is unpacked for as long as this process lives."""
    packed = path.with_name(path.name + SUFFIX)
    return _unpacked(packed) if packed.is_file() and not path.is_dir() else path


@cache
def _unpacked(packed: Path) -> Path:
    return _UNPACKED.enter_context(unpacked(packed))


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
