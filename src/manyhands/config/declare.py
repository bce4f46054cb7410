"""Options are declared here: default, help and, for every number, the range of its values.

A range is checked wherever a value arrives: as a flag, a keyword argument, in TOML, or in an object
such as `SGD(lr=…)`. Its ends are finite, so NaN and the infinities are never inside.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from manyhands.errors import ConfigError

_LARGEST = 3.4028234663852886e38  # of float32, the type of the parameters
_DIGITS = 40  # of a number that a message shows in full


@dataclass(frozen=True)
class Range:
    """The values that a number may have.

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
        """Refuse a value outside; None means "not given", a sequence is checked item by item.

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
        """Return what would have been right, as short as the value allows."""
        kind = "a whole number" if self.whole else "a number"
        low = f"greater than {self.low:g}" if self.above else f"{_count(self.low)} or more"
        high = f"below {self.high:g}" if self.below else f"{_count(self.high)} or less"
        if not self._is_kind(value):
            return f"{kind}, {low} and {high}"
        if self.whole and self.low > 1:
            return f"a number from {self.low} to {self.high}"
        if self.whole:
            return high if value > self.high else low
        if self.high <= 1:
            low = f"above {self.low:g}" if self.above else f"from {self.low:g}"
            return f"a number {low} " + (f"and {high}" if self.below else f"to {self.high:g}")
        if value > self.high:
            return f"a finite number, {high}"
        return f"a finite number {low}" if self.above else f"a finite number, {low}"


def _count(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) and abs(number) >= 10_000 else f"{number:g}"


def shown(value: Any) -> str:
    """Return a value for a message; a number of thousands of digits only by its length.

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


def whole(low: int, high: int) -> Range:
    """Return the range of whole numbers from `low` to `high`."""
    return Range(low, high)


# What counts in processes: workers, masters, stages.
PROCESSES = whole(1, 65_536)
COUNT = whole(1, 2**31 - 1)
# What counts in examples or updates, over a whole run.
AMOUNT = whole(1, 10**12)
EPOCHS = whole(1, 1_000_000)
SEED = whole(0, 2**63 - 1)
POSITIVE = Range(0.0, _LARGEST, whole=False, above=True)
NON_NEGATIVE = Range(0.0, _LARGEST, whole=False)
FINITE = Range(-sys.float_info.max, sys.float_info.max, whole=False)
SECONDS = Range(0.0, 1e9, whole=False, above=True)
PART = Range(0.0, 1.0, whole=False)
INNER_PART = Range(0.0, 1.0, whole=False, above=True, below=True)


def option(default: Any, help: str, within: Range | None = None) -> Any:
    """Declare a field that is an option: its default, its explanation, and a number's range."""
    return field(default=default, metadata={"help": help, "within": within})


def check_declared(part: Any) -> None:
    """Refuse values of a dataclass that are outside the ranges its fields declare."""
    for each in fields(part):
        if within := each.metadata.get("within"):
            within.check(each.name, getattr(part, each.name))
