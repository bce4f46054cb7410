"""Recognises records whose steps were counted in two ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.report.values import mapping, number, sequence, text

DIFFERENT = (
    "counts steps in two ways: an older version let the other workers train while worker 0 "
    "evaluated; its steps by epoch are left out. Run it again to have them"
)


def counts_differently(record: Mapping[str, Any]) -> bool:
    """Say whether the last epoch has the most steps of a worker, and the result has worker 0's.

    Older versions recorded that where workers that do not step together stopped at a target.
    """
    rows = [mapping(row) for row in sequence(record.get("epochs"))]
    team = [mapping(row) for row in sequence(record.get("workers"))]
    counts = [number(row, "steps") or 0.0 for row in team if text(row, "role") in ("", "worker")]
    last = number(rows[-1], "steps") if rows else None
    steps = number(record, "result", "steps")
    return steps is not None and last == max(counts, default=None) and last != steps
