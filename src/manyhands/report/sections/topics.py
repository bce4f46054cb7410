"""What the runs say about the questions that parallel training raises, one topic each.

A topic has a reason, which holds for any run (`explanations`), and what was measured here. One
whose data was not recorded is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from manyhands.report.analysis.summary import Summary
from manyhands.report.sections import (
    asynchronous_topic,
    data_volume_topic,
    masters_topic,
    scaling_law_topic,
    single_option_topic,
    staleness_topic,
)
from manyhands.report.wording.explanations import DP_SGD, PRIVATE, STRATEGIES, Explanation
from manyhands.report.wording.sentences import Sentence, capitalised


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
            title=masters_topic.title(summary),
            reason=_reason(summary, "masters"),
            sentences=tuple(masters_topic.sentences(summary)),
        ),
        Topic(
            title=staleness_topic.title(summary),
            reason=_reason(summary, "staleness"),
            sentences=tuple(staleness_topic.sentences(summary)),
        ),
        Topic(
            title="What one option changes",
            sentences=tuple(single_option_topic.sentences(summary)),
        ),
        Topic(title="How much data is sent", sentences=tuple(data_volume_topic.sentences(summary))),
        Topic(
            title="Amdahl's or Gustafson's law",
            reason=scaling_law_topic.REASON,
            sentences=tuple(scaling_law_topic.sentences(summary)),
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


def explained(summary: Summary) -> list[tuple[str, Explanation]]:
    """Return how the strategies of the report work, and where runs are private what that adds."""
    runs = summary.loaded.runs
    private = any(run.privacy for run in runs)
    found = [("privacy (DP-SGD)", DP_SGD)] if private else []
    own = {run.strategy: run.summary for run in runs if run.summary}
    for name in dict.fromkeys(run.strategy for run in runs):
        if name in own:
            how = f"{own[name]}. This strategy is no part of manyhands."
            found.append((name, Explanation(line=own[name], how=how)))
        elif name in STRATEGIES:
            secret = all(run.privacy for run in runs if run.strategy == name)
            found.append(
                (name, replace(STRATEGIES[name], **(PRIVATE.get(name, {}) if secret else {})))
            )
    return found
