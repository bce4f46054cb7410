"""The tables of docs/results.md on the defaults, from the record of `defaults.py`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from turns import Record

Run = dict[str, Any]
INDEPENDENT: Mapping[str, Mapping[str, Any]] = {
    "hogwild": {"strategy": "hogwild"},
    "server": {"strategy": "server"},
    "averaging": {"strategy": "averaging"},
    "asynchronous gossip": {"strategy": "gossip", "asynchronous": True},
}


def settings_table(found: Record) -> str:
    """Return Markdown: each setting's loss by task, divided by that of the task's best setting.

    Losses are means over the seeds. A setting of which a run diverged is not told by a number.
    """
    runs = found["runs"]
    names = list(dict.fromkeys(run["task"] for run in runs))
    grid = sorted({(run["batch_size"], run["lr"]) for run in runs})
    losses = {
        (task, *setting): _mean(
            run["loss"]
            for run in runs
            if (run["task"], run["batch_size"], run["lr"]) == (task, *setting)
        )
        for task in names
        for setting in grid
    }
    best = {task: min(losses[(task, *setting)] for setting in grid) for task in names}
    lines = [f"| batch | learning rate | {' | '.join(names)} | worst | mean |"]
    lines.append("|---" * (len(names) + 4) + "|")
    for batch, lr in grid:
        ratios = [losses[task, batch, lr] / best[task] for task in names]
        cells = [batch, f"{lr:g}", *map(_ratio, (*ratios, max(ratios), statistics.fmean(ratios)))]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def division_table(found: Record) -> str:
    """Return Markdown: each strategy's validation loss with the rate divided and undivided."""
    runs: Sequence[Run] = found["division"]
    lines = ["| strategy | workers | divided | undivided |", "|---|---|---|---|"]
    for name, given in INDEPENDENT.items():
        mine = [run for run in runs if run["strategy"] == given["strategy"]]
        ways = [[r["loss"] for r in mine if r["lr_scaling"] == way] for way in ("inverse", "none")]
        cells = [name, mine[0]["workers"], *map(_losses, ways)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _mean(losses: Iterable[float | None]) -> float:
    return statistics.fmean(math.inf if loss is None else loss for loss in losses)


def _ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "diverged"


def _losses(losses: Sequence[float | None]) -> str:
    known = [loss for loss in losses if loss is not None]
    failed = (
        f"{len(losses) - len(known)} of {len(losses)} diverged" if len(known) < len(losses) else ""
    )
    range_ = f"{_mean(known):.3f} ({min(known):.3f} to {max(known):.3f})" if known else ""
    return ", ".join(filter(None, (range_, failed)))


TABLES: dict[str, Callable[[Record], str]] = {
    "settings": settings_table,
    "division": division_table,
}
