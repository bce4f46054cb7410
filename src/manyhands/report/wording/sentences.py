"""Sentences that carry their facts, so that what a report says can be checked against the runs.

    time = fact("seconds", 12.3, runs=row.runs, text=seconds(12.3))
    say("{who} trains in {time}.", who=Name(row.label), time=time)

A number reaches a sentence as a `Fact`: what was measured, its value, of which runs, compared with
which, and by which calculation (`how`). The digits in a configuration's name are no measurement: it
reaches a sentence as a `Name`. No other digit stands in a sentence. `report.json` lists the facts
of every sentence; the tests calculate each of them anew from the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

How = Literal[
    "median",  # of the runs
    "ratio",  # the median of `against` divided by that of the runs
    "multiple",  # the median of the runs divided by that of `against`
    "excess",  # the same, less one: by which part the runs have more (or less, without its sign)
    "difference",  # the median of the runs less that of `against`
    "least",  # the median of the runs, and no configuration in `among` has less
    "most",  # the median of the runs, and no configuration in `among` has more
    "count",  # how many runs
    "p-value",  # of a test that the runs and those of `against` do not differ
    "fit",  # of a law to the runs
    "derived",  # by the formula that `what` names
    "constant",  # a threshold of the report, about no run
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
        parameters: What the calculation needs beside the runs, for instance the target accuracy.
        text: The number as the sentence shows it; empty where the sentence only rests on it.
    """

    what: str
    value: float
    how: How
    runs: tuple[str, ...]
    against: tuple[str, ...] = ()
    among: tuple[tuple[str, ...], ...] = ()
    parameters: tuple[tuple[str, float | str], ...] = ()
    text: str

    def __str__(self) -> str:
        return self.text


class Name(str):
    """The name of a configuration, as it stands in a sentence."""


class Sentence(str):
    """A sentence, or a part of one, that knows the facts that it states and the names in it."""

    facts: tuple[Fact, ...]
    names: tuple[str, ...]

    def __new__(cls, text: str, facts: Iterable[Fact] = (), names: Iterable[str] = ()) -> Sentence:
        """Make a sentence of its text, its facts and its names."""
        made = super().__new__(cls, text)
        made.facts = tuple(facts)
        made.names = tuple(dict.fromkeys(map(str, names)))
        return made


def fact(
    what: str,
    value: float,
    *,
    text: str,
    runs: Iterable[HasId] = (),
    how: How = "median",
    against: Iterable[HasId] = (),
    among: Iterable[Iterable[HasId]] = (),
    parameters: Mapping[str, float | str] | None = None,
) -> Fact:
    """Return a fact about some runs."""
    return Fact(
        what=what,
        value=value,
        how=how,
        runs=_folders(runs),
        against=_folders(against),
        among=tuple(_folders(each) for each in among),
        parameters=tuple((parameters or {}).items()),
        text=text,
    )


def _folders(runs: Iterable[HasId]) -> tuple[str, ...]:
    return tuple(run.where for run in runs)


def say(template: str, /, **parts: object) -> Sentence:
    """Fill in a template; the facts and the names of its parts become the sentence's."""
    return _sentence(template.format(**parts), parts.values())


def _sentence(text: str, parts: Iterable[object]) -> Sentence:
    held = list(parts)
    facts = [stated for part in held for stated in facts_of(part)]
    return Sentence(text, facts, [name for part in held for name in names_in(part)])


def facts_of(part: object) -> tuple[Fact, ...]:
    """Return the facts that a part of a sentence states."""
    if isinstance(part, Fact):
        return (part,)
    return part.facts if isinstance(part, Sentence) else ()


def names_in(part: object) -> tuple[str, ...]:
    """Return the configurations' names in a part of a sentence."""
    if isinstance(part, Name):
        return (str(part),)
    return part.names if isinstance(part, Sentence) else ()


def listed(parts: Sequence[str | Fact], between: str = ", ", last: str = " and ") -> Sentence:
    """Return "a", "a and b", "a, b and c", with the facts of all."""
    texts = [str(part) for part in parts]
    if len(texts) < 2:
        return _sentence("".join(texts), parts)
    return _sentence(between.join(texts[:-1]) + last + texts[-1], parts)


def capitalised(sentence: str) -> Sentence:
    """Return a sentence with its first letter large, with its facts."""
    names = [
        each[:1].upper() + each[1:] if sentence.startswith(each) else each
        for each in names_in(sentence)
    ]
    return Sentence(sentence[:1].upper() + sentence[1:], facts_of(sentence), names)


def as_json(sentence: str) -> Mapping[str, Any]:
    """Return a sentence, the names in it and its facts as they stand in `report.json`."""
    facts = [
        {**asdict(stated), "parameters": dict(stated.parameters)} for stated in facts_of(sentence)
    ]
    return {"text": str(sentence), "names": list(names_in(sentence)), "facts": facts}
