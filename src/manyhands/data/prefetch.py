"""Gathers small batches of several steps at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from manyhands.data import batch_tree

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.data.batch_tree import Tree

TOGETHER = 1 << 16  # numbers that are gathered at once: they stay in a core's cache
MOST = 16  # shares that are: more would save little


class Indexed(Protocol):
    """A share with the indices of its examples."""

    @property
    def indices(self) -> np.ndarray:
        """Into the training set; shape (count,) int64."""


Share = TypeVar("Share", bound=Indexed)


class Source(Protocol):
    """A source of examples: a `Split`, or a wrapper of one."""

    def batch(self, indices: np.ndarray) -> tuple[Tree, Tree]:
        """Return the examples at `indices` (int64), ready for the model."""


class Prefetcher(Generic[Share]):
    """Iterates over the shares of an epoch, and gathers their examples ahead.

    To gather a few examples takes as long as to gather some dozens. So as many shares are looked at
    together as have TOGETHER numbers between them, and gathered when the first one's are asked for.

    Args:
        shares: What comes next; where it depends on steps not done yet, give no `width`.
        width: The numbers of one example; None to look at one share only.
    """

    def __init__(self, source: Source, shares: Iterable[Share], width: int | None = None) -> None:
        self._source, self._shares, self._width = source, iter(shares), width
        self._some: list[Share] = []
        self._part = slice(0)  # the last share's, of what was gathered
        self._fetched: tuple[Tree, Tree] | None = None

    def __iter__(self) -> Iterator[Share]:
        for first in self._shares:
            self._some = [first, *islice(self._shares, self._more(first))]
            self._fetched, stop = None, 0
            for share in self._some:
                start, stop = stop, stop + len(share.indices)
                self._part = slice(start, stop)
                yield share

    def _more(self, first: Share) -> int:
        """Return how many shares to gather with this one, all assumed to be of its size."""
        if self._width is None:
            return 0
        return min(MOST, max(1, TOGETHER // max(1, self._width * len(first.indices)))) - 1

    def batch(self) -> tuple[Tree, Tree]:
        """Return the examples of the latest share, ready for the model.

        They are a copy, as aligned in memory as if they had been gathered alone, and the model's
        own to change: its bits are the same whichever share was the first.
        """
        if len(self._some) == 1:
            return self._source.batch(self._some[0].indices)
        if self._fetched is None:
            self._fetched = self._source.batch(np.concatenate([s.indices for s in self._some]))
        x, y = self._fetched
        own = batch_tree.map_tensors(self._copied, x)
        return own, own if y is x else batch_tree.map_tensors(self._copied, y)

    def _copied(self, leaf: Tensor) -> Tensor:
        return leaf[self._part].clone()
