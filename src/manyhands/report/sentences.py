"""Sentences that carry their facts, so that what a report says can be checked against the runs.

    time = fact("seconds", 12.3, runs=row.runs, text=seconds(12.3))
    say("{who} trains in {time}.", who=row.label, time=time)

A number reaches a sentence as a `Fact`: what was measured, its value, of which runs, compared with
which, and by which calculation (`how`). `report.json` lists the facts of every sentence; the tests
calculate each of them anew from the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

How = Literal[
    "median",  # of the runs
    "ratio",  # the median of `against` divided by that of the runs
    "difference",  # the median of the runs less that of `against`
    "least",  # the median of the runs, and no configuration in `among` has less
    "most",  # the median of the runs, and no configuration in `among` has more
    "count",  # how many runs
    "p-value",  # of a test that the runs and those of `against` do not differ
    "fit",  # of a law to the runs
    "derived",  # by the formula that `what` names
]


class HasId(Protocol):
    """A run, as far as facts name it."""

    @property
    def where(self) -> str:
        """The run's folder."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One number of a sentence.

    Attributes:
        what: The measure, for instance "seconds" or "accuracy".
        value: The number itself, not rounded.
        how: By which calculation it comes from the runs.
        runs: The folders of the runs that it is about.
        against: The folders of the runs that it is compared with.
        among: The folders of the runs of every configuration that "least" or "most" is claimed of.
        text: The number as the sentence shows it.
    """

    what: str
    value: float
    how: How
    runs: tuple[str, ...]
    against: tuple[str, ...] = ()
    among: tuple[tuple[str, ...], ...] = ()
    text: str

    def __str__(self) -> str:
        return self.text


class Sentence(str):
    """A sentence, or a part of one, that knows the facts that it states."""

    facts: tuple[Fact, ...]

    def __new__(cls, text: str, facts: Iterable[Fact] = ()) -> Sentence:
        """Make a sentence of its text and its facts."""
        made = super().__new__(cls, text)
        made.facts = tuple(facts)
        return made


def fact(
    what: str,
    value: float,
    *,
    text: str,
    runs: Iterable[HasId],
    how: How = "median",
    against: Iterable[HasId] = (),
    among: Iterable[Iterable[HasId]] = (),
) -> Fact:
    """Return a fact about some runs."""
    return Fact(
        what=what,
        value=value,
        how=how,
        runs=_folders(runs),
        against=_folders(against),
        among=tuple(_folders(each) for each in among),
        text=text,
    )


def _folders(runs: Iterable[HasId]) -> tuple[str, ...]:
    return tuple(run.where for run in runs)


def say(template: str, /, **parts: object) -> Sentence:
    """Fill in a template; the facts of its parts become the sentence's."""
    found = [stated for part in parts.values() for stated in facts_of(part)]
    return Sentence(template.format(**parts), found)


def facts_of(part: object) -> tuple[Fact, ...]:
    """Return the facts that a part of a sentence states."""
    if isinstance(part, Fact):
        return (part,)
    return part.facts if isinstance(part, Sentence) else ()


def listed(parts: Sequence[str | Fact], between: str = ", ", last: str = " and ") -> Sentence:
    """Return "a", "a and b", "a, b and c", with the facts of all."""
    texts = [str(part) for part in parts]
    facts = [stated for part in parts for stated in facts_of(part)]
    if len(texts) < 2:
        return Sentence("".join(texts), facts)
    return Sentence(between.join(texts[:-1]) + last + texts[-1], facts)


def as_json(sentence: str) -> Mapping[str, Any]:
    """Return a sentence and its facts as they stand in `report.json`."""
    return {"text": str(sentence), "facts": [asdict(stated) for stated in facts_of(sentence)]}
