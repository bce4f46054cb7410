"""The first sentences of a report: which configuration leads, or what an option's values cost."""

from __future__ import annotations

from manyhands.report import categories, cost
from manyhands.report.answer import answer, doubts
from manyhands.report.tables import Summary


def opening(summary: Summary) -> tuple[str, ...]:
    """Return what page, PDF, `report.json` and terminal say first."""
    if found := categories.compare(summary):
        return (*cost.sentences(found), *doubts(summary))
    return tuple(answer(summary))
