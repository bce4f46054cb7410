"""A worker that is slower than the others, for tests and demonstrations: `--slow 1:3`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from manyhands.data import batch_tree
from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica

_SLOWEST = 1000  # times as long as without


class Slow(NamedTuple):
    """Who is slow, and how much; `sleep` leaves its core to others in the meantime."""

    rank: int
    factor: float
    sleep: bool = False


def parse(slow: str) -> Slow:
    """Take RANK:FACTOR or RANK:FACTOR:sleep apart.

    >>> parse("1:2.5")
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


@contextmanager
def slowed(slow: Slow, replica: Replica, x: Tree, y: Tree) -> Iterator[None]:
    """Let the gradient that is computed inside take `factor` times as long, and be the same.

    The extra work is real: the same gradient again and again, its traces (random numbers,
    BatchNorm's statistics) undone.
    """
    begin = time.monotonic()
    if not slow.sleep:
        with replica.undisturbed():
            for _ in range(int(slow.factor) - 1):
                replica.gradient(x, y)
            part = round(slow.factor % 1 * batch_tree.count(x))
            if part > 1:  # of one example, BatchNorm has no statistics
                replica.gradient(*batch_tree.cut(x, y, slice(part)))
    yield
    if slow.sleep:
        time.sleep((slow.factor - 1) * (time.monotonic() - begin))
