"""Hold predictions against measurements on this machine, alone on it: how far off are they?

    python benchmarks/prediction.py --out docs/records/prediction

Measures the machine, runs a sweep of sync (every all-reduce), averaging and server, measures the
machine again, and states the error of every predicted speed-up. The bar is 10 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import get_args

from manyhands import Averaging, Server, Sync, compare
from manyhands.calibrating import calibrate
from manyhands.forecast import Calibration, telling
from manyhands.judging import judge, measurements
from manyhands.predicting import counts
from manyhands.prospects import Case
from manyhands.record import cores, write_json
from manyhands.strategies.sync import AllReduce

BAR = 0.10


def sweep(folder: Path, workers: list[int], options: dict, repeats: int) -> None:
    """Run what is predicted; a sweep that was stopped goes on."""
    strategies = [Sync(allreduce=name) for name in get_args(AllReduce)]
    strategies += [Averaging(), Server(), Server(masters=2)]
    compare(
        strategies=strategies, workers=workers, repeats=repeats, output=folder, epochs=1, **options
    )


def middle(before: Calibration, after: Calibration) -> Calibration:
    """Return the mean of two calibrations' step times; the rest is the first's."""
    curves = []
    for one, other in zip(before.curves, after.curves, strict=True):
        points = [
            dataclasses.replace(
                p,
                seconds=(p.seconds + q.seconds) / 2,
                update=(p.update + q.update) / 2,
                met={k: (p.met[k] + q.met[k]) / 2 for k in p.met},
            )
            for p, q in zip(one.points, other.points, strict=True)
        ]
        curves.append(dataclasses.replace(one, points=tuple(points)))
    return dataclasses.replace(before, curves=tuple(curves))


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
    workers = [int(w) for w in asked.workers.split(",")] if asked.workers else counts(cores())
    asked.out.mkdir(parents=True, exist_ok=True)
    before = calibrate(say=print, **options)
    # What the runs do is what was measured: the same kernels.
    options["kernels"] = before.options["kernels"]
    sweep(asked.out / "sweep", workers, options, asked.repeats)
    known = middle(before, calibrate(say=print, **options))
    _, measured = measurements(asked.out / "sweep")
    fitting = [m for m in measured if m["strategy"].processes(m["workers"]) <= cores()]
    rows = judge(Case(known=known, batch_size=asked.batch_size, epochs=1), fitting)
    write_json(asked.out / "calibration.json", known.as_dict())
    write_json(asked.out / "errors.json", rows)
    telling.figure(rows, asked.out / "prediction.png", measured=rows)
    print(
        telling.aligned(
            ("strategy", "workers", "measured", "predicted", "error"), telling.compared(rows)
        )
    )
    worst = max(rows, key=lambda row: abs(row["error"]))
    within = sum(abs(row["error"]) <= BAR for row in rows)
    print(
        f"{within} of {len(rows)} within {100 * BAR:.0f} %; the worst: {worst['label']} with "
        f"{worst['workers']} workers, {100 * worst['error']:+.1f} %"
    )
    return 0 if within == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
