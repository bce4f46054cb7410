"""What a strategy puts into the run's record; refused where it is set, not when the run ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from manyhands.config.strategy_class_rules import describe_class
from manyhands.errors import WorkerError


class Facts(dict[str, Any]):
    """A dictionary of what JSON can hold; to set anything else is an error at that line."""

    def __setitem__(self, name: str, value: Any) -> None:
        if problem := _find_problem(value):
            raise TypeError(f"worker.facts[{name!r}] {problem}")
        super().__setitem__(name, value)

    def __ior__(self, other: Any) -> Facts:  # type: ignore[override,misc]
        self.update(other)
        return self

    def update(self, *others: Any, **more: Any) -> None:
        """Set several of them."""
        for name, value in dict(*others, **more).items():
            self[name] = value


def check_facts(strategy: Any, facts: Mapping[str, Any]) -> None:
    """Refuse what was put into the facts' own lists and dictionaries, by the strategy's class.

    Raises:
        WorkerError: JSON cannot hold it.
    """
    for name, value in facts.items():
        if problem := _find_problem(value):
            kind = describe_class(type(strategy))
            raise WorkerError(f"strategy {kind}: worker.facts[{name!r}] {problem}")


def _find_problem(value: Any) -> str:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        return (
            f"cannot be recorded: {error}; expected finite numbers, texts, and lists or "
            "dictionaries of them, such as tensor.tolist()"
        )
    return ""
