"""Checks of values, one per property; each error names field, value and what was expected."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from manyhands.errors import ConfigError, nearest

_DIGITS = 40  # of a number that a message shows in full
_UNLIMITED = 1e9  # an end of a range that a message about another fault leaves out


def _refuse(fields: Mapping[str, Any], fits: Callable[[Any], bool], expected: str) -> None:
    """Refuse values that do not fit; None means "not given"."""
    for name, value in fields.items():
        if value is not None and not fits(value):
            raise ConfigError(f"{name} is {value!r}; expected {expected}")


def positive(**fields: float | None) -> None:
    """Refuse anything but a finite number above zero."""
    _refuse(fields, lambda v: math.isfinite(v) and v > 0, "a finite number greater than 0")


def non_negative(**fields: float | None) -> None:
    """Refuse anything but a finite number of zero or more."""
    _refuse(fields, lambda v: math.isfinite(v) and v >= 0, "a finite number, 0 or more")


def at_least(least: int, **fields: int | None) -> None:
    """Refuse whole numbers below `least`."""
    _refuse(fields, lambda v: bool(v >= least), f"{least} or more")


def between(low: float, high: float, **fields: float | None) -> None:
    """Refuse numbers outside [low, high]."""
    _refuse(fields, lambda v: low <= v <= high, f"a number from {low:g} to {high:g}")


def words(**fields: str | None) -> list[str]:
    """Split texts as a shell would; return all words."""
    parts: list[str] = []
    for name, value in fields.items():
        try:
            parts += shlex.split(value or "")
        except ValueError as error:
            raise ConfigError(
                f"{name} is {value!r}: {error}; expected words as in a shell, every quote closed"
            ) from None
    return parts


def one_of(known: Collection[str], **fields: str | None) -> None:
    """Refuse names that are not among `known`, and suggest the nearest."""
    for name, value in fields.items():
        if value is not None and value not in known:
            raise ConfigError(
                f"{name} is {value!r}; expected one of {', '.join(known)}.{nearest(value, known)}"
            )


@dataclass(frozen=True)
class Range:
    """The allowed values of a number.

    Attributes:
        low: The least of them.
        high: The greatest.
        whole: Whether only whole numbers are meant.
        above: Whether `low` itself is excluded.
        below: Whether `high` itself is excluded.
    """

    low: float
    high: float
    whole: bool = True
    above: bool = False
    below: bool = False

    def check(self, name: str, value: Any) -> None:
        """Refuse a value outside; None means "not given", sequences are checked item by item.

        Raises:
            ConfigError: If the value is no number of this kind, or outside.
        """
        if isinstance(value, list | tuple):
            for place, each in enumerate(value):
                self.check(f"{name}[{place}]", each)
        elif value is not None and not self._holds(value):
            raise ConfigError(f"{name} is {shown(value)}; expected {self._expected(value)}")

    def _holds(self, value: Any) -> bool:
        if not self._is_kind(value) or not self.low <= value <= self.high:
            return False
        return not (self.above and value == self.low) and not (self.below and value == self.high)

    def _is_kind(self, value: Any) -> bool:
        kind = Integral if self.whole else Real
        return isinstance(value, kind) and not isinstance(value, bool)

    def _expected(self, value: Any) -> str:
        """Return the expected values, as briefly as possible."""
        kind = "a whole number" if self.whole else "a number"
        low = f"greater than {self.low:g}" if self.above else f"{_count(self.low)} or more"
        high = f"below {self.high:g}" if self.below else f"{_count(self.high)} or less"
        fits, limited = self._is_kind(value), self.low > -_UNLIMITED
        if fits and self.whole and self.low > 1:
            return f"a number from {self.low} to {self.high}"
        if fits and self.whole:
            return high if value > self.high else low
        if fits and limited and self.high <= 1:
            low = f"above {self.low:g}" if self.above else f"from {self.low:g}"
            return f"a number {low} " + (f"and {high}" if self.below else f"to {self.high:g}")
        if not fits or value != value or abs(value) == math.inf:
            ends = [low] * limited + [high] * (self.high < _UNLIMITED)
            kind = "a finite number" if fits else kind
            return f"{kind}, {' and '.join(ends)}" if ends else kind
        if value > self.high:
            return f"a finite number, {high}"
        return f"a finite number {low}" if self.above else f"a finite number, {low}"


def whole(low: int, high: int) -> Range:
    """Return the range of whole numbers from `low` to `high`, both included."""
    return Range(low, high)


def shown(value: Any) -> str:
    """Return a value for a message; a number of thousands of digits by its length.

    >>> shown(7), shown(10**50)
    ('7', '1000000000…, a number of 51 digits')
    """
    if not isinstance(value, int) or abs(value) < 10**_DIGITS:
        return repr(value)
    digits = abs(value).bit_length() * 30103 // 100_000 + 1
    first = abs(value) // 10 ** (digits - 10)
    if first >= 10**10:
        digits, first = digits + 1, first // 10
    return f"{'-' if value < 0 else ''}{first}…, a number of {digits:,} digits"


def _count(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) and abs(number) >= 10_000 else f"{number:g}"
