"""A period that is measured: in seconds, or such that exchanges take no more than a given share.

```
seconds:  H ← ⌊period / s⌋             after each meeting
share:    H ← ⌈x (1 − ρ) / (s ρ)⌉      once, after the second meeting
```

s: the median seconds of a step, of the slowest worker; x: seconds of the exchange, of the worker
that waited least for the others; ρ: exchange_share. Until it is known, H is 4.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.comm import Communicator

FIRST = 4  # steps before a meeting while nothing is known yet
_MEETINGS = 2  # the first connects, and takes longer
_LONGEST = 10**12


@dataclass
class Pace:
    """When the workers meet next, and what was measured for that.

    Attributes:
        period: The steps from one meeting to the next.
        following: The step after which they meet next.
        met: The meetings so far.
        seconds: The median step and the exchange behind `period`, once they are known.
        ends: When this worker's steps since the last meeting ended.
    """

    period: int = FIRST
    following: int = FIRST
    met: int = 0
    seconds: tuple[float, float] | None = None
    ends: list[float] = field(default_factory=list)

    def due(self, step: int) -> bool:
        """Note that so many steps are over, and say whether to meet now."""
        self.ends.append(time.monotonic())
        return step >= self.following

    def choose(
        self, comm: Communicator, step: int, exchange: float, *, seconds: int | None, share: float
    ) -> None:
        """Choose the next meeting, the same on all workers. Collective.

        Args:
            comm: The workers.
            step: The steps so far.
            exchange: Seconds of the exchange that has just ended.
            seconds: The period to keep; None: keep to the share.
            share: The largest share of the time for exchanges.
        """
        import numpy as np

        self.met += 1
        if self.seconds is None or seconds is not None:
            spans = [later - earlier for earlier, later in pairwise(self.ends)]
            mine = statistics.median(spans) if spans else 0.0
            agreed = comm.maximum(np.array([mine, -exchange]))
            each, least = max(float(agreed[0]), 1e-9), -float(agreed[1])
            if seconds is not None:
                self.period, self.seconds = int(seconds / each), (each, least)
            elif self.met >= _MEETINGS:
                self.period = -int(-least * (1 - share) // (each * share))
                self.seconds = each, least
            self.period = min(max(1, self.period), _LONGEST)
        self.following = step + self.period
        self.ends = [time.monotonic()]

    def regroup(self, comm: Communicator) -> None:
        """Take over what the survivor with the most meetings knows. Collective."""
        known = comm.gather([self.met, self.following, self.period, self.seconds])
        self.met, self.following, self.period, seconds = max(known, key=lambda one: one[:2])
        self.seconds = tuple(seconds) if seconds else None
        self.ends = []

    def facts(self) -> dict[str, Any]:
        """Return what the record says."""
        step, exchange = self.seconds or (None, None)
        return {"steps": self.period, "step_seconds": step, "exchange_seconds": exchange}

    def state(self) -> list[Any]:
        """Return what a checkpoint keeps."""
        return [self.period, self.following, self.met, self.seconds]

    @classmethod
    def restore(cls, kept: list[Any]) -> Pace:
        """Return the pace whose `state` that was."""
        period, following, met, seconds = kept
        return cls(period, following, met, tuple(seconds) if seconds else None)
