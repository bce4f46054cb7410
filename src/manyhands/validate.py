"""Checks of values, one per property; each error names field, value and what was expected."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection

from manyhands.errors import ConfigError, nearest


def positive(**fields: float | None) -> None:
    """Refuse what is not a finite number above zero; None means "not given"."""
    for name, value in fields.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} is {value!r}; expected a finite number greater than 0")


def non_negative(**fields: float | None) -> None:
    """Refuse what is not a finite number of zero or more."""
    for name, value in fields.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} is {value!r}; expected a finite number, 0 or more")


def at_least(least: int, **fields: int | None) -> None:
    """Refuse whole numbers below `least`."""
    for name, value in fields.items():
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value!r}; expected {least} or more")


def between(low: float, high: float, **fields: float | None) -> None:
    """Refuse numbers outside [low, high]."""
    for name, value in fields.items():
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}")


def words(**fields: str | None) -> list[str]:
    """Return texts as a shell would take them apart, one after the other."""
    found: list[str] = []
    for name, value in fields.items():
        try:
            found += shlex.split(value or "")
        except ValueError as error:
            raise ConfigError(
                f"{name} is {value!r}: {error}; expected words as in a shell, every quote closed"
            ) from None
    return found


def one_of(known: Collection[str], **fields: str | None) -> None:
    """Refuse names that are not among `known`, and suggest the nearest."""
    for name, value in fields.items():
        if value is not None and value not in known:
            raise ConfigError(
                f"{name} is {value!r}; expected one of {', '.join(known)}.{nearest(value, known)}"
            )
