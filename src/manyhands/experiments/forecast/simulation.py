"""A parameter server, event by event: workers compute and push, masters queue, step and answer."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_WARM = 0.2  # part of the pushes that is left out: at first all workers push together


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is simulated; all times in seconds.

    Attributes:
        workers: W, which compute and push.
        compute: Mean time of a gradient.
        spread: Quantiles of that time over its mean; () means that all take the same.
        busy: What each of the M masters does for one push of its part.
        trip: The way from worker to master and back.
        bound: s of the waiting rule: nobody is more than s pushes ahead; None means no bound.
        pushes: How many pushes of all workers together are simulated.
        seed: Decides the draws.
    """

    workers: int
    compute: float
    busy: tuple[float, ...]
    trip: float
    spread: tuple[float, ...] = ()
    bound: int | None = None
    pushes: int = 4000
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        rate: Pushes per second, of all workers together.
        staleness: How often a push was that many updates of others old.
        idle: Part of the time that the busiest master waits.
    """

    rate: float
    staleness: Counter[int]
    idle: float

    @property
    def mean_staleness(self) -> float:
        """Mean number of updates that a push is old."""
        total = self.staleness.total()
        return sum(tau * n for tau, n in self.staleness.items()) / total if total else 0.0


@dataclass
class _Master:
    """One master's queue: when it is free, and what it has seen."""

    free: float = 0.0
    worked: float = 0.0
    version: int = 0
    pulled: dict[int, int] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)


def simulate(setting: Setting) -> Outcome:
    """Play the setting through.

    With s = 0 a master waits for all pushes and steps once for all of them; `busy` is then the
    time for one push out of W, and a round takes W of them.
    """
    draw, ranks = _Draw(setting), range(setting.workers)
    masters = [
        _Master(pulled=dict.fromkeys(ranks, 0), clocks=dict.fromkeys(ranks, 0))
        for _ in setting.busy
    ]
    events: list[tuple[float, int, int]] = []  # when a push arrives, whose, at which master
    left = [len(masters)] * setting.workers  # answers that worker k still waits for
    ready = [0.0] * setting.workers  # when the last answer that it has arrived

    def push(k: int) -> None:
        arrives = ready[k] + draw.compute() + setting.trip / 2
        for m in range(len(masters)):
            heapq.heappush(events, (arrives, k, m))

    for k in ranks:
        push(k)
    stale: Counter[int] = Counter()
    done, began, warm = 0, 0.0, int(_WARM * setting.pushes)
    while done < setting.pushes:
        now, k, m = heapq.heappop(events)
        for other, leaves in _serve(masters[m], k, now, setting.busy[m], setting.bound, stale):
            ready[other] = max(ready[other], leaves + setting.trip / 2)
            left[other] -= 1
            if not left[other]:
                left[other] = len(masters)
                done += 1
                if done == warm:
                    began = ready[other]
                    stale.clear()
                push(other)
    span = max(max(ready) - began, 1e-12)
    idle = 1 - max(master.worked for master in masters) / max(max(ready), 1e-12)
    return Outcome((setting.pushes - warm) / span, stale, max(0.0, idle))


def _serve(
    master: _Master, k: int, now: float, busy: float, bound: int | None, stale: Counter[int]
) -> list[tuple[int, float]]:
    """Let a master take worker k's push; returns who is answered, and when the answer leaves."""
    begin = max(now, master.free)
    master.free = begin + busy
    master.worked += busy
    if bound == 0:
        master.held[k] = now
        if len(master.held) < len(master.clocks):
            return []
        stale[0] += len(master.held)
        answered = list(master.held)
        master.held.clear()
        return [(other, master.free) for other in answered]
    stale[master.version - master.pulled[k]] += 1
    master.version += 1
    master.clocks[k] += 1
    master.held[k] = now
    slowest = min(master.clocks.values()) if bound is not None else 0
    released = [
        other for other in master.held if bound is None or master.clocks[other] - slowest <= bound
    ]
    for other in released:
        del master.held[other]
        master.pulled[other] = master.version
    return [(other, master.free) for other in released]


class _Draw:
    """Draws step times from the measured quantiles."""

    def __init__(self, setting: Setting) -> None:
        self.mean, self.spread = setting.compute, setting.spread
        self.random = random.Random(setting.seed)

    def compute(self) -> float:
        """Return the time of one gradient."""
        return self.mean * (quantile(self.spread, self.random.random()) if self.spread else 1.0)


def quantile(spread: Sequence[float], level: float) -> float:
    """Return the value at `level` (0 to 1) of evenly spaced quantiles."""
    place = level * (len(spread) - 1)
    low = min(int(place), len(spread) - 2) if len(spread) > 1 else 0
    if len(spread) == 1:
        return spread[0]
    return spread[low] + (spread[low + 1] - spread[low]) * (place - low)
