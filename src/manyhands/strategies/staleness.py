"""Staleness: how many updates by others came between a worker's read and its own update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


def describe_staleness(counts: Iterable[Counter[int]]) -> dict[str, Any]:
    """Return the histogram of all of them together, its mean and its maximum.

    As `worker.facts["staleness"]` it becomes a figure of the report.

    Args:
        counts: Each worker's updates by their staleness.
    """
    together: Counter[int] = sum(counts, Counter())
    total = together.total() if together else 0
    return {
        "histogram": {str(tau): together[tau] for tau in sorted(together)},
        "mean": sum(tau * n for tau, n in together.items()) / total if total else 0.0,
        "max": max(together, default=0),
    }
