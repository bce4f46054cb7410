"""Where the workers of a forecast run and what they share; how costs grow with their number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from manyhands.experiments.forecast.network import Network

# How what workers say to each other grows beyond the numbers that were measured: not at all, with
# the logarithm, or in proportion; "usual" is what the forecast itself takes.
Growth = Literal["usual", "level", "log", "linear"]
GROWTHS: tuple[Growth, ...] = ("level", "log", "linear")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The workers of a forecast, their batch, their threads and their network.

    Attributes:
        workers: P.
        batch: Examples of one worker's step, the largest part where a batch is shared out.
        network: What lies between hosts; None: all are on the host that was measured.
        threads: Threads per worker; None: the host's cores, shared out.
        update: Examples behind one step of all; None: as many times `batch`.
        growth: How costs grow beyond the workers that were measured.
    """

    workers: int
    batch: int
    network: Network | None = None
    threads: int | None = None
    update: int | None = None
    growth: Growth = "usual"

    @property
    def examples(self) -> int:
        """Examples of one step of all workers."""
        return self.update or self.workers * self.batch

    def here(self) -> int:
        """Return how many workers share a host."""
        return min(self.workers, self.network.per_host) if self.network else self.workers


def compute_factor(growth: Growth, size: float, most: float) -> float:
    """Return how much more talking costs `size` workers than the most that were measured.

    >>> growths = ("level", "log", "linear", "usual")
    >>> [round(compute_factor(growth, 1024, 4), 1) for growth in growths]
    [1.0, 5.0, 256.0, 256.0]
    """
    if size <= most or growth == "level":
        return 1.0
    return math.log2(size) / math.log2(max(2.0, most)) if growth == "log" else size / most
