"""`report.json`: every sentence of the report, with the facts that it states.

    {"schema": 1,
     "configurations": [{"name", "label", "workers", "runs"}],
     "scope": [sentence], "answer": [sentence], "notes": [sentence],
     "topics": [{"title", "sentences": [sentence]}],
     "sections": [{"title", "sentences": [sentence],
                   "figures": [{"id", "title", "sentences": [sentence]}]}]}

A sentence is {"text", "names", "facts"}; a fact has the fields of `sentences.Fact`. Runs are named
by the path of their `run.json`, below the folder that holds the sweep.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from manyhands.report.analysis import option_values
from manyhands.report.analysis.configurations import name
from manyhands.report.analysis.summary import Summary
from manyhands.report.figures import option_cost
from manyhands.report.figures.chart import Chart
from manyhands.report.output.page import arranged
from manyhands.report.sections import privacy_statement, topics
from manyhands.report.sections.answer import answer
from manyhands.report.sections.doubts import doubts
from manyhands.report.sections.table_notes import notes
from manyhands.report.sections.what_was_compared import what_was_compared
from manyhands.report.wording.sentences import as_json

SCHEMA = 1


def dump(summary: Summary, charts: Sequence[Chart]) -> str:
    """Return the text of `report.json`."""
    return json.dumps(contents(summary, charts), indent=1, ensure_ascii=False) + "\n"


def contents(summary: Summary, charts: Sequence[Chart]) -> Mapping[str, Any]:
    """Return the sentences of a report, by section and figure."""
    compared = option_values.compare(summary)
    shown = compared.rest if compared else summary
    return {
        "schema": SCHEMA,
        "configurations": [
            {
                "name": name(summary, row),
                "label": row.label,
                "workers": row.workers,
                "runs": [run.where for run in row.runs],
            }
            for row in summary.rows
        ],
        "scope": _sentences(what_was_compared(summary)),
        "answer": _sentences(doubts(summary) if compared else answer(summary)),
        "notes": _sentences(notes(summary, compared)),
        "topics": [
            *([_values(compared)] if compared else ()),
            *(
                {"title": topic.title, "sentences": _sentences(topic.sentences)}
                for topic in topics.topics(shown)
            ),
        ],
        "sections": [
            {
                "title": title,
                "sentences": _sentences(privacy_statement.sentences(summary) if promises else ()),
                "figures": [
                    {"id": c.id, "title": c.title, "sentences": _sentences(c.comment)} for c in mine
                ],
            }
            for title, promises, mine in arranged(shown, charts)
        ],
    }


def _values(compared: option_values.Comparison) -> Mapping[str, Any]:
    """Return what the values of an option cost: the page begins with it."""
    title = f"What {compared.spoken} costs"
    return {
        "title": title,
        "sentences": _sentences([*option_cost.sentences(compared), *option_cost.comment(compared)]),
    }


def _sentences(sentences: Iterable[str]) -> list[Mapping[str, Any]]:
    return [as_json(sentence) for sentence in sentences]
