"""A worker that is slower than the others, for tests and demonstrations: `--slow 1:3`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from manyhands.data import batch_tree

if TYPE_CHECKING:
    from manyhands.config.parse import Slow
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica


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
            part = round(slow.factor % 1 * batch_tree.count_examples(x))
            if part > 1:  # of one example, BatchNorm has no statistics
                replica.gradient(*batch_tree.take_examples(x, y, slice(part)))
    yield
    if slow.sleep:
        time.sleep((slow.factor - 1) * (time.monotonic() - begin))
