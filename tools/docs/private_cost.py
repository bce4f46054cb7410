"""What privacy costs, and what the strategy costs: a table from a sweep that ran each both ways.

The loss due to the strategy is the accuracy of the sequential run less that of the strategy,
neither private; the loss due to privacy is that of the strategy's own run less that of its private
one. Both compare runs with the same batch per update, in percentage points, medians over the seeds.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from sweeps import rows_of

Key = tuple[str, str, int, bool]  # model, strategy, examples behind an update, private


def table(folder: Path) -> str:
    """Return the table as Markdown."""
    _, runs = rows_of(folder)
    planned = json.loads((folder / "sweep.json").read_text())["planned"]
    for run in runs:  # a model that all have is no column
        run.setdefault("model", planned[0]["config"]["model"])
    found: dict[Key, list[float]] = defaultdict(list)
    for run in runs:
        found[_key(run)].append(100 * run["accuracy"])
    head = ["model", "strategy", "workers", "examples an update", "not private", "ε = 3"]
    head += ["lost by the strategy", "lost by privacy"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    workers = {_key(run): run["workers"] for run in runs}
    for model, strategy, batch, private in sorted(found, key=_order):
        if private:
            continue
        open_, alone = (
            found[model, strategy, batch, False],
            found[model, "sequential", batch, False],
        )
        hidden = found.get((model, strategy, batch, True), [])
        line = [model, strategy, str(workers[model, strategy, batch, False]), str(batch)]
        line += [_values(open_), _values(hidden)]
        line += ["–" if strategy == "sequential" else _loss(alone, open_), _loss(open_, hidden)]
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


def _key(run: dict[str, Any]) -> Key:
    strategy, batch = run["strategy"], int(run["batch_size"])
    if run.get("staleness") == 0:  # one update of all workers' pushes
        strategy, batch = "server, synchronous", batch * run["workers"]
    return run["model"], strategy, batch, bool(run["private"])


def _order(key: Key) -> tuple[str, int, bool, str]:
    model, strategy, batch, _ = key
    return model, -batch, strategy != "sequential", strategy


def _values(found: list[float]) -> str:
    if not found:
        return "–"
    spread = f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""
    return f"{statistics.median(found):.2f} %{spread}"


def _loss(before: list[float], after: list[float]) -> str:
    if not before or not after:
        return "–"
    return f"{statistics.median(before) - statistics.median(after):.2f}"
