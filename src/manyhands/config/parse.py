"""Options whose values are small texts: how often, how much slower, how fast, which partition."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from manyhands import value_checks
from manyhands.config.option_declaration import EPOCHS
from manyhands.errors import ConfigError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SLOWEST = 1000  # times as long as without
KINDS = (
    "balanced",
    "random-sampling",
    "random-partition",
    "stratified",
    "dirichlet",
    "by-label",
    "by-id",
)
SHARDED = KINDS[2:]
LABELLED = ("stratified", "dirichlet", "by-label")
SHARED_OUT = ("balanced", "random-partition")


class Slow(NamedTuple):
    """Who is slow, and how much; `sleep` leaves its core to others in the meantime."""

    rank: int
    factor: float
    sleep: bool = False


def parse_slow(slow: str) -> Slow:
    """Take RANK:FACTOR or RANK:FACTOR:sleep apart.

    >>> parse_slow("1:2.5")
    Slow(rank=1, factor=2.5, sleep=False)

    Raises:
        ConfigError: If it is not of that form, or the factor is not a number from 1 to 1000.
    """
    rank, _, rest = slow.partition(":")
    factor, colon, how = rest.partition(":")
    try:
        parsed = Slow(int(rank), float(factor), how == "sleep")
    except ValueError:
        parsed = Slow(-1, math.nan)
    if parsed.rank < 0 or not 1 <= parsed.factor <= _SLOWEST or how != "sleep" * len(colon):
        raise ConfigError(
            f"slow is {slow!r}; expected RANK:FACTOR or RANK:FACTOR:sleep with a finite FACTOR of "
            f"1 or more, at most {_SLOWEST}, for instance 1:3"
        )
    return parsed


@dataclass(frozen=True)
class Every:
    """How often: every so many steps, or every so many seconds."""

    steps: int | None = None
    seconds: float | None = None
    epochs: Fraction | None = None

    @property
    def within_epochs(self) -> bool:
        """Whether it may fall between the ends of two epochs."""
        return self.epochs is None or self.epochs.denominator > 1


_EACH = {"s": 1, "sec": 1, "min": 60, "h": 3600}


def parse_evaluate_every(value: int | str) -> Every:
    """Read a whole number of epochs, or "0.1epochs", "200steps", "10s", "5min".

    >>> parse_evaluate_every(2)
    Every(steps=None, seconds=None, epochs=Fraction(2, 1))

    Raises:
        ConfigError: If it is not of that form, or not above zero.
    """
    if not isinstance(value, str):
        EPOCHS.check("evaluate_every", value)
        return Every(epochs=Fraction(value))
    pattern = r"(\d{1,9}(?:\.\d{1,9})?)\s*(steps?|epochs?|s|sec|min|h|)"
    match = re.fullmatch(pattern, value.strip())
    number, unit = (Fraction(match[1]), match[2]) if match else (Fraction(0), "")
    whole = number.denominator == 1
    if number == 0 or (not whole and (not unit or unit.startswith("step"))):
        raise ConfigError(
            f"evaluate_every is {value!r}; expected a whole number of epochs, or such as "
            "0.1epochs, 200steps or 10s"
        )
    if unit.startswith("step"):
        return Every(steps=int(number))
    return Every(seconds=float(number * _EACH[unit])) if unit in _EACH else Every(epochs=number)


def parse_every(text: str) -> Every:
    """Read "500steps", "90s" or "5min"."""
    match = re.fullmatch(r"(\d{1,9})\s*(steps?|s|sec|min|h)", text.strip())
    if not match or int(match[1]) == 0:
        raise ConfigError(f"checkpoint_every is {text!r}; expected such as 500steps, 90s or 5min")
    number, unit = int(match[1]), match[2]
    if unit.startswith("step"):
        return Every(steps=number)
    return Every(seconds=number * _EACH[unit])


def parse_latency(text: str) -> float:
    """Return "20us" in seconds.

    >>> parse_latency("2us"), parse_latency("0.5 ms")
    (2e-06, 0.0005)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*(ns|us|µs|ms|s)\s*", text)
    seconds = _number(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not seconds > 0:
        raise ConfigError(f"latency is {text!r}; expected such as 20us or 30ms")
    return seconds


def parse_bandwidth(text: str, *, in_bytes: bool = True) -> float:
    """Return "100Gbit" or, with `in_bytes`, "12.5GB", both per second, in bits per second.

    >>> parse_bandwidth("100Gbit"), parse_bandwidth("50 MB/s")
    (100000000000.0, 400000000.0)
    """
    units, also = ({"bit": 1, "B": 8}, " or 12.5GB") if in_bytes else ({"bit": 1}, "")
    match = re.fullmatch(rf"\s*([\d.]+)\s*([kKMGT]?)({'|'.join(units)})(?:/s|ps)?\s*", text)
    speed = _number(match[1]) * _PREFIXES[match[2].lower()] * units[match[3]] if match else 0.0
    if not 0 < speed < math.inf:
        raise ConfigError(f"bandwidth is {text!r}; expected such as 100Mbit, 1Gbit{also}")
    return speed


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


COMPRESSIONS = ("none", "fp16", "bf16", "int8", "topk", "powersgd")
_MOST_RANKS = 1024


class Compress(NamedTuple):
    """How gradients are compressed; `amount` is a fraction (topk), a rank (powersgd), or 0."""

    kind: str
    amount: float = 0.0


def parse_compress(text: str) -> Compress:
    """Take a compression apart.

    >>> parse_compress("int8"), parse_compress("topk:0.01"), parse_compress("powersgd:4")
    (Compress(kind='int8', amount=0.0), Compress(kind='topk', amount=0.01), \
Compress(kind='powersgd', amount=4.0))

    Raises:
        ConfigError: If it is unknown, or its argument does not fit.
    """
    kind, colon, argument = text.partition(":")
    value_checks.one_of(COMPRESSIONS, compress=kind)
    amount = _number(argument)
    if kind == "topk":
        if not 0 < amount <= 1:
            raise ConfigError(
                f"compress is {text!r}; expected topk:FRACTION with the part of the numbers to "
                "send, above 0 and at most 1, for instance topk:0.01"
            )
        return Compress(kind, amount)
    if kind == "powersgd":
        if not (argument.isdecimal() and 1 <= amount <= _MOST_RANKS):
            raise ConfigError(
                f"compress is {text!r}; expected powersgd:RANK with a whole RANK from 1 to "
                f"{_MOST_RANKS}, for instance powersgd:4"
            )
        return Compress(kind, amount)
    if colon:
        raise ConfigError(f"compress is {text!r}; expected {kind} alone")
    return Compress(kind)


class Partition(NamedTuple):
    """A partition's name, taken apart."""

    kind: str
    replace: bool = False
    alpha: float = 0.0


def parse_partition(partition: str) -> Partition:
    """Take a partition's name apart.

    >>> parse_partition("dirichlet:0.5")
    Partition(kind='dirichlet', replace=False, alpha=0.5)

    Raises:
        ConfigError: If the name is unknown or its argument does not fit.
    """
    kind, colon, argument = partition.partition(":")
    value_checks.one_of(KINDS, partition=kind)
    if kind == "dirichlet":
        return Partition(kind, alpha=_parse_alpha(partition, argument))
    if kind == "random-sampling" and argument == "replace":
        return Partition(kind, replace=True)
    if colon:
        takes = " or random-sampling:replace" if kind == "random-sampling" else ""
        raise ConfigError(f"partition is {partition!r}; expected {kind}{takes}")
    return Partition(kind)


def _parse_alpha(partition: str, argument: str) -> float:
    try:
        alpha = float(argument)
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(
            f"partition is {partition!r}; expected dirichlet:ALPHA with a finite ALPHA above 0, "
            "for instance dirichlet:0.5"
        )
    return alpha
