"""Prints which rows of a committed sweep the report's test tells apart, as docs/results.md does.

`python tools/docs/tell_apart.py NAME [NAME …]`: for time and for accuracy, the pairs of rows with
p ≤ 5 %. Every pair of rows counts as a comparison, since the text could have picked any of them. Of
a row's time against the run that its speed-up is against, every row with several workers and such a
speed-up does, as in the report.
"""

from __future__ import annotations

import sys
from functools import cache
from itertools import combinations
from pathlib import Path

from sweeps import folder_of

from manyhands.report.analysis.significance import Verdict, compare, pairs
from manyhands.report.analysis.summarise import summarise
from manyhands.report.analysis.summary import Row
from manyhands.report.records.load import read

RECORDS = Path(__file__).parents[2] / "docs" / "records"
MEASURES = ("seconds", "accuracy")


@cache
def rows(name: str) -> tuple[Row, ...]:
    """Return the configurations of a committed sweep."""
    return summarise(read([folder_of(RECORDS / name)])).rows


def verdict(name: str, measure: str, one: Row, other: Row) -> Verdict:
    """Test two rows of a sweep by the rule of docs/results.md."""
    found = rows(name)
    count = pairs(len(found))
    if measure == "seconds" and (one.reference == other.runs or other.reference == one.runs):
        count = len([r for r in found if r.shown_speedup and r.workers > 1])
    return compare(one, other, measure, count)


def apart(name: str, measure: str) -> list[tuple[Row, Row, float]]:
    """Return the pairs of rows that the rule tells apart, each with its p-value."""
    held = [row for row in rows(name) if getattr(row, measure) is not None]
    tested = ((a, b, verdict(name, measure, a, b)) for a, b in combinations(held, 2))
    return [(a, b, found.p) for a, b, found in tested if found.apart and found.p is not None]


def main() -> int:
    for name in sys.argv[1:]:
        for measure in MEASURES:
            print(f"{name}, {measure}:")
            for one, other, p in apart(name, measure):
                names = " / ".join(f"{row.label}, {row.workers} workers" for row in (one, other))
                print(f"  {names}: p = {p:.2g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
