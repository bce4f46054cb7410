"""How long the runs to come will take, from those that have finished."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.config.options import find_tagged


@dataclass
class Estimate:
    """Guesses seconds: from runs of the same kind, else from any finished run.

    A run costs its start-up (everything outside of training) and a time per example. Another number
    of workers is taken to share the examples, as far as there are cores.
    """

    cores: int
    _seen: list[tuple[Mapping[str, Any], float, float]] = field(default_factory=list)

    def note(self, config: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Learn from a finished run."""
        seconds = record.get("seconds")
        if seconds and record.get("status") == "finished":
            training = float(seconds["training"])
            self._seen.append((config, training, float(seconds["total"]) - training))

    def seconds(self, config: Mapping[str, Any]) -> float | None:
        """Return how long a run of this configuration will take in all; None before any run."""
        if not self._seen:
            return None
        alike = [seen for seen in self._seen if _get_kind(seen[0]) == _get_kind(config)]
        kin = alike or [s for s in self._seen if s[0]["strategy"] == config["strategy"]]
        return statistics.median(self._from(seen, config) for seen in kin or self._seen)

    def _from(
        self, seen: tuple[Mapping[str, Any], float, float], config: Mapping[str, Any]
    ) -> float:
        known, training, overhead = seen
        hands = self._hands(known) / self._hands(config)
        crowd = max(1.0, config["workers"] / self.cores) / max(1.0, known["workers"] / self.cores)
        return float(
            training * hands * _count_examples(config) / _count_examples(known) + overhead * crowd
        )

    def _hands(self, config: Mapping[str, Any]) -> int:
        return min(int(config["workers"]), self.cores)


def _get_kind(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what decides how long a run takes, but for how much it trains."""
    deciding = find_tagged(lambda tags: tags.decides_pace or tags.decides_kernels)
    return tuple(config.get(name) for name in ("strategy", *deciding))


def _count_examples(config: Mapping[str, Any]) -> float:
    """Return the amount of work, in a unit of its own that runs of one sweep share."""
    if config.get("max_steps"):
        return float(config["max_steps"] * config["batch_size"])
    return float(config["epochs"] * (config.get("limit") or 1))
