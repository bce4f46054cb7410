"""What a master measures while it serves, for checkpoints and for the run's record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyhands.strategies.staleness import describe_staleness


@dataclass
class Statistics:
    """One master's measurements.

    Attributes:
        stale: How many pushes had which staleness τ.
        queues: How often so many pushes had arrived when the master looked.
        idle: Seconds spent waiting for pushes.
        busy: Seconds spent applying and answering them.
    """

    stale: Counter[int] = field(default_factory=Counter)
    queues: Counter[int] = field(default_factory=Counter)
    idle: float = 0.0
    busy: float = 0.0

    def state(self) -> dict[str, Any]:
        """Return the measurements as a checkpoint holds them."""
        return {
            "stale": sorted(self.stale.items()),
            "queues": sorted(self.queues.items()),
            "idle": self.idle,
            "busy": self.busy,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the measurements of a checkpoint."""
        self.stale, self.queues = (
            Counter({int(n): times for n, times in state[name]}) for name in ("stale", "queues")
        )
        self.idle, self.busy = state["idle"], state["busy"]

    def facts(self) -> dict[str, Any]:
        """Return the measurements as the record states them."""
        looks = self.queues.total()
        return {
            "pushes": self.stale.total(),
            "idle": round(self.idle, 6),
            "busy": round(self.busy, 6),
            "queue": {
                "mean": sum(n * times for n, times in self.queues.items()) / looks,
                "max": max(self.queues),
            },
            "staleness": describe_staleness([self.stale]),
        }


def merge(facts: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return the masters' facts, and over all of them the staleness and the lead."""
    masters = [each for each in facts if each]
    counts = [
        Counter({int(tau): n for tau, n in each["staleness"]["histogram"].items()})
        for each in masters
    ]
    return {
        "staleness": describe_staleness(counts),
        "lead": max(each["lead"] for each in masters),
        "masters": masters,
    }
