"""What the runs say about the questions that parallel training raises, one topic each.

A topic has a reason, which holds for any run (`explanations`), and what was measured here. One
whose data was not recorded is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from manyhands.report import (
    asynchronous_topic,
    law_topic,
    masters_topic,
    single_option_topic,
    staleness,
    volume_topic,
)
from manyhands.report.explanations import STRATEGIES
from manyhands.report.sentences import Sentence, capitalised
from manyhands.report.summary import Summary


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One question: its title, the general reason, and what these runs show."""

    title: str
    reason: str = ""
    sentences: tuple[Sentence, ...] = ()


def topics(summary: Summary) -> list[Topic]:
    """Return every topic that the records say something about."""
    made = [
        Topic(
            title="Synchronous or asynchronous",
            sentences=tuple(asynchronous_topic.sentences(summary)),
        ),
        Topic(
            title="Why the parameters are split over several masters",
            reason=_reason(summary, "masters"),
            sentences=tuple(masters_topic.sentences(summary)),
        ),
        Topic(
            title=staleness.title(summary),
            reason=_reason(summary, "staleness"),
            sentences=tuple(staleness.sentences(summary)),
        ),
        Topic(
            title="What one option changes",
            sentences=tuple(single_option_topic.sentences(summary)),
        ),
        Topic(title="How much data is sent", sentences=tuple(volume_topic.sentences(summary))),
        Topic(
            title="Amdahl's or Gustafson's law",
            reason=law_topic.REASON,
            sentences=tuple(law_topic.sentences(summary)),
        ),
    ]
    return [
        replace(topic, sentences=tuple(map(capitalised, topic.sentences)))
        for topic in made
        if topic.sentences
    ]


def _reason(summary: Summary, field: str) -> str:
    """Return what the strategies of the report say about masters, or about staleness."""
    names = sorted({row.group.strategy for row in summary.rows}, key=lambda one: one != "server")
    texts = [getattr(STRATEGIES[name], field) for name in names if name in STRATEGIES]
    return next((text for text in texts if text), "")
