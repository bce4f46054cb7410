"""The records in docs/records, read from their archives without the report's own code."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parents[2] / "docs/records"
SUFFIX = ".tar.xz"


def packed(name: str) -> Path:
    """Return the archive of a committed sweep."""
    return RECORDS / f"{name}{SUFFIX}"


def run_at(where: str) -> dict[str, Any]:
    """Return a run's record by its path, SWEEP/…/run.json."""
    return runs(where.partition("/")[0])[where]


@cache
def runs(name: str) -> dict[str, dict[str, Any]]:
    """Return the records of all runs of a committed sweep, by path."""
    with tarfile.open(packed(name)) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {
            path: json.loads(file.read())
            for path, file in files.items()
            if file and path.endswith("/run.json")
        }


def readable() -> list[str]:
    """Return the names of the committed sweeps that hold runs."""
    names = sorted(path.name.removesuffix(SUFFIX) for path in RECORDS.glob(f"*{SUFFIX}"))
    return [name for name in names if runs(name)]
