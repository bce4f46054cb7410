"""What a check finds of one aspect, as text for a terminal and as JSON."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = "manyhands-check/1"
_WIDTH = 100
_MARKS = {"pass": "ok", "fail": "FAIL", "note": "no", "not checked": "–"}
Status = Literal["pass", "fail", "note", "not checked"]
NOTED = ("in place", "two axes", "order")  # aspects that never fail
_SHOWN = 2  # details of an aspect


@dataclass
class Finding:
    """What holds of one aspect.

    Attributes:
        aspect: A key of the check's `ASPECTS`.
        status: What is found.
        details: Why, in sentences; the first few.
        ranks: For a deadlock: where each rank is.
        cases: How many cases were tried.
    """

    aspect: str
    status: Status = "not checked"
    details: list[str] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    cases: int = 0

    def fail(self, detail: str, *, first: bool = False) -> None:
        """Note a failure; `first` puts it before all others."""
        self.status = "note" if self.aspect in NOTED else "fail"
        if detail not in self.details:
            self.details.insert(0 if first else len(self.details), detail)
            del self.details[_SHOWN:]


def describe_place(place: list[Any] | None) -> str:
    """Return where a process is, in words."""
    if not place:
        return "in code that was not found"
    file, line, function, _ = place
    return f"{short_path(file)}, line {line}, in {function}"


def short_path(file: str) -> str:
    """Return a file's path relative to the working folder, if it is inside."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def list_ranks(ranks: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line per rank that says where it is."""
    for row in ranks:
        name, place = f"rank {row['rank']}", row["place"]
        if row["state"] == "returned":
            yield f"{name}: returned"
            continue
        if row["call"] and not place:
            yield f"{name}: {row['call']}"
            continue
        source = f": {place[3]}" if place and place[3] else ""
        yield f"{name}: {row['call'] or 'computing'} at {describe_place(place)}{source}"


def format_finding(finding: Finding, title: str) -> Iterator[str]:
    """Yield the lines of one finding."""
    yield f"{_MARKS[finding.status]:>6}  {title}"
    for detail in finding.details:
        yield from _indent(detail)
    for line in list_ranks(finding.ranks):
        yield from _indent(line, 4)


def _indent(text: str, more: int = 0) -> list[str]:
    margin = " " * (8 + more)
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=margin,
        subsequent_indent=margin + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def rank_to_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return where a process was."""
    file, line, function, source = row["place"] or (None, None, None, None)
    return {
        "rank": row["rank"],
        "state": row["state"],
        "call": row["call"],
        "file": file,
        "line": line,
        "function": function,
        "source": source,
    }
