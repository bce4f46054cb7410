"""Numbers of workers that depend on the machine: `workers="cores"`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from manyhands.config import presets
from manyhands.config.options import configure, options
from manyhands.launch.machine import cores

CORES = "cores"
# What one worker alone would refuse, and no strategy depends on.
_OF_SEVERAL = ("min_workers", "shares", "slow")


def most_of_cores(value: Any, cores: int) -> int | None:
    """Return the most workers that "cores" or "cores:4" stands for; None of any other value.

    >>> most_of_cores("cores", 16), most_of_cores("cores:4", 16), most_of_cores("cores:4", 2)
    (16, 4, 2)
    """
    match = re.fullmatch(r"cores(?::([1-9]\d{0,5}))?", value) if isinstance(value, str) else None
    return min(cores, int(match[1] or cores)) if match else None


def fit_to_cores(own: Mapping[str, Any]) -> dict[str, Any]:
    """Replace "cores" by the most workers that the machine's cores and the strategy allow.

    Stages and slices of a model compute like workers, and need cores of their own; masters do not.
    """
    here = cores()
    allowed = most_of_cores(own.get("workers"), here)
    if allowed is None:
        return dict(own)
    alone = {name: value for name, value in own.items() if name not in _OF_SEVERAL}
    strategy = configure({**alone, "workers": 1}).strategy
    most = allowed if strategy.supports.many else 1
    if not strategy.supports.whole_batches:
        stated = presets.apply(own).get("batch_size", options()["batch_size"].default)
        most = min(most, stated)
    if strategy.supports.beside != "master":
        fitting = (w for w in range(most, 0, -1) if strategy.processes(w) <= here)
        most = next(fitting, 1)
    return {**own, "workers": most}
