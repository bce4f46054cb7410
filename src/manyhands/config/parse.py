"""Options whose values are small texts: how often, how much slower, which partition."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from manyhands import validate
from manyhands.errors import ConfigError

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
        found = Slow(int(rank), float(factor), how == "sleep")
    except ValueError:
        found = Slow(-1, math.nan)
    if found.rank < 0 or not 1 <= found.factor <= _SLOWEST or how != "sleep" * len(colon):
        raise ConfigError(
            f"slow is {slow!r}; expected RANK:FACTOR or RANK:FACTOR:sleep with a finite FACTOR of "
            f"1 or more, at most {_SLOWEST}, for instance 1:3"
        )
    return found


@dataclass(frozen=True)
class Every:
    """How often: every so many steps, or every so many seconds."""

    steps: int | None = None
    seconds: float | None = None


def parse_every(text: str) -> Every:
    """Read "500steps", "90s" or "5min"."""
    found = re.fullmatch(r"(\d{1,9})\s*(steps?|s|sec|min|h)", text.strip())
    if not found or int(found[1]) == 0:
        raise ConfigError(f"checkpoint_every is {text!r}; expected such as 500steps, 90s or 5min")
    number, unit = int(found[1]), found[2]
    if unit.startswith("step"):
        return Every(steps=number)
    return Every(seconds=number * {"s": 1, "sec": 1, "min": 60, "h": 3600}[unit])


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
    validate.one_of(KINDS, partition=kind)
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
