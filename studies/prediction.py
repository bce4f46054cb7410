"""Hold predictions against measurements on this machine, alone on it: how far off are they?

    python studies/prediction.py --out docs/records/prediction
    python tools/docs/pack_records.py docs/records/prediction

Measures the machine and runs a sweep of sync (every all-reduce), averaging and server, in turns: a
machine is not the same for ten minutes. States the error of every speed-up that the medians of the
calibrations predict, and the worst of each calibration alone. The bar is 10 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyhands import Averaging, Server, Sync, compare
from manyhands.config.all_reduces import ALL_REDUCES
from manyhands.experiments.forecast import Calibration, presentation
from manyhands.experiments.forecast.calibrate import calibrate
from manyhands.experiments.forecast.predict import list_counts
from manyhands.experiments.forecast.strategy_models import Case
from manyhands.experiments.forecast.validation import compare_speedups, read_measurements
from manyhands.launch.machine import cores, write_json

BAR = 0.10


def sweep(folder: Path, workers: list[int], options: dict, repeats: int) -> None:
    """Run what is predicted; a sweep that was stopped, or has fewer repeats, goes on."""
    strategies = [Sync(allreduce=name) for name in ALL_REDUCES]
    strategies += [Averaging(), Server(), Server(masters=2)]
    fitting = [s for s in strategies if s.processes(min(workers)) <= cores()]
    compare(
        strategies=fitting, workers=workers, repeats=repeats, output=folder, epochs=1, **options
    )


def middle(trees: Sequence[Any]) -> Any:
    """Return the medians of the numbers of several calibrations, as JSON holds them."""
    first = trees[0]
    if isinstance(first, dict):  # how many steps were timed, and so which meetings, may differ
        shared = [key for key in first if all(key in tree for tree in trees)]
        return {key: middle([tree[key] for tree in trees]) for key in shared}
    if isinstance(first, list | tuple):
        return [middle(each) for each in zip(*trees, strict=True)]
    return statistics.median(trees) if isinstance(first, float) else first


def worst(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row that is furthest off."""
    return max(rows, key=lambda row: abs(row["error"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/prediction")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--limit", type=int, help="examples of an epoch; by default all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", help="e.g. 1,2,4; by default up to the cores less the masters")
    asked = parser.parse_args()
    options = {"model": asked.model, "batch_size": asked.batch_size, "threads": asked.threads}
    options |= {"limit": asked.limit} if asked.limit else {}
    workers = [int(w) for w in asked.workers.split(",")] if asked.workers else list_counts(cores())
    asked.out.mkdir(parents=True, exist_ok=True)
    found = [calibrate(say=print, **options)]
    # What the runs do is what was measured: the same kernels.
    options["kernels"] = found[0].options["kernels"]
    for repeat in range(asked.repeats):
        sweep(asked.out / "sweep", workers, options, repeat + 1)
        found.append(calibrate(say=print, **options))
    _, measured = read_measurements(asked.out / "sweep")
    fitting = [m for m in measured if m["strategy"].processes(m["workers"]) <= cores()]
    known = Calibration.from_dict(middle([one.as_dict() for one in found]))
    rows, *single = [
        compare_speedups(Case(known=one, batch_size=asked.batch_size, epochs=1), fitting)
        for one in (known, *found)
    ]
    write_json(asked.out / "calibration.json", known.as_dict())
    write_json(asked.out / "errors.json", rows)
    presentation.draw_figure(rows, asked.out / "prediction.png", measured=rows)
    print(
        presentation.align(
            ("strategy", "workers", "measured", "predicted", "error"),
            presentation.tabulate_errors(rows),
        )
    )
    within, most = sum(abs(row["error"]) <= BAR for row in rows), worst(rows)
    print(
        f"{within} of {len(rows)} within {100 * BAR:.0f} %; the worst: {most['label']} with "
        f"{most['workers']} workers, {100 * most['error']:+.1f} %"
    )
    alone = ", ".join(f"{100 * worst(one)['error']:+.1f} %" for one in single)
    print(f"the worst from each calibration alone: {alone}")
    return 0 if within == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
