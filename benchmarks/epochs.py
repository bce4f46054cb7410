"""After how many epochs the CNN reaches 98 % on MNIST, by batch size, learning rate and schedule.

`python benchmarks/epochs.py --rounds 12 --out FILE.json`. Each round has the next seed. One worker
trains alone on one core, and as many run at a time as the machine has cores. Many workers would
round differently, so a single seed would end elsewhere, but the distribution would be the same.
Runs have the default of three epochs. docs/performance.md has the table. Its last column has the
accuracy with few examples, and so few updates.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from to_target import TARGET
from turns import parser, write

import manyhands as mh
from manyhands.config.presets import PRESETS
from manyhands.launch.machine import cores

Setting = dict[str, Any]

FEW = 10_000
CONSTANT: tuple[Setting, ...] = (
    {"batch_size": 128, "lr": 0.02},
    {"batch_size": 128, "lr": 0.05},
    {"batch_size": 256, "lr": 0.05},
)
CYCLE = PRESETS["one-cycle"].options
# The preset's rate, as much per example of a batch, and a fall along a line or a cosine.
FALLING: tuple[Setting, ...] = tuple(
    {**CYCLE, "batch_size": batch, "lr": round(CYCLE["lr"] * batch / CYCLE["batch_size"], 6)}
    | {"schedule": schedule}
    for batch in (128, CYCLE["batch_size"], 256)
    for schedule in ("linear", "cosine")
)


def accuracies(setting: Setting, seed: int, limit: int | None = None) -> list[float]:
    """Return the test accuracy after each epoch, of all training examples or of some."""
    with tempfile.TemporaryDirectory(prefix="manyhands-bench-") as place:
        done = mh.fit(
            "cnn", "mnist", strategy="sequential", workers=1, threads=1, seed=seed,
            limit=limit, output=f"{place}/run", progress=False, **setting,
        )  # fmt: skip
    return [epoch["test_accuracy"] for epoch in done.record["epochs"]]


def reached(those: list[float]) -> int:
    """Return the first epoch with the target; one more than there were if none has it."""
    return next((e for e, one in enumerate(those, 1) if one >= TARGET), len(those) + 1)


def table(path: Path) -> str:
    """Return a record as Markdown: each setting, its runs by epoch, and how well they ended."""
    if not path.exists():
        return "No records yet."
    found = json.loads(path.read_text())["records"][0]
    lines = [
        "| batch | learning rate | schedule | seeds with 2 epochs or fewer | with 3 | with more "
        f"| accuracy after 3 epochs | the same with {FEW:,} examples |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found["settings"]:
        after = [reached(those) for those in one["accuracies"]]
        last = [those[-1] for those in one["accuracies"]]
        counts = (sum(e <= 2 for e in after), after.count(3), sum(e > 3 for e in after))
        warmup = f", warm-up {one['warmup']}" if "warmup" in one else ""
        schedule = one.get("schedule", "constant") + warmup
        ends = (_told(last), _told([those[-1] for those in one["few"]]))
        cells = (one["batch_size"], one["lr"], schedule, *counts, *ends)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _told(those: list[float]) -> str:
    mean = f"{statistics.mean(those):.2%} ({min(those):.2%} to {max(those):.2%})"
    return mean.replace("%", " %")


def main() -> None:
    asked = parser(__doc__, rounds=12, steps=0).parse_args()
    settings, seeds = (*CONSTANT, *FALLING), range(asked.rounds)
    with ProcessPoolExecutor(cores()) as pool:
        runs = {
            (i, limit): [pool.submit(accuracies, setting, seed, limit) for seed in seeds]
            for limit in (None, FEW)
            for i, setting in enumerate(settings)
        }
    found = {which: [run.result() for run in those] for which, those in runs.items()}
    told = [
        {**setting, "accuracies": found[i, None], "few": found[i, FEW]}
        for i, setting in enumerate(settings)
    ]
    what = f"epochs to {TARGET:.0%} on MNIST, one worker"
    nothing: dict[str, Any] = {"medians": {}, "ratios": {}, "bars": {}}
    write(asked.out, {"what": what, "unit": "epochs", "ours": "", **nothing, "settings": told})


if __name__ == "__main__":
    main()
