"""Which configurations may be compared: those that differ in nothing else that was varied."""

from __future__ import annotations

from collections.abc import Iterable

from manyhands.report.groups import PRIVATE
from manyhands.report.tables import Row, Summary

# Strategies have their own default here, or it has no effect on what is compared.
FREE = ("workers", "partition", "timeout", PRIVATE)


def alike(summary: Summary, one: Row, other: Row, but: Iterable[str] = ()) -> bool:
    """Say whether two configurations agree in every option that varies and that both have.

    Args:
        summary: What both belong to.
        one: A configuration.
        other: Another one.
        but: Options that may differ.
    """
    mine, theirs = one.runs[0], other.runs[0]
    if one.group.source != other.group.source or bool(mine.privacy) != bool(theirs.privacy):
        return False
    free = {*FREE, *but}
    return all(
        mine.config[axis] == theirs.config[axis]
        for axis in (*summary.layout.axes, summary.layout.x)
        if axis not in free and axis in mine.config and axis in theirs.config
    )
