"""Training from shards, mapped and streamed, beside the same rows held in memory.

`python studies/training_from_shards.py flights --out studies/results/spark/training.json`, on a
folder that `manyhands prepare` made: examples per second in each way, in turn, and their share of
those from memory, each run against the mean of the two from memory beside it; and, for a machine
that others use too, examples per second of processors. Training time against the number of rows is
experiments/flights-scaling.toml.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from turns import beside, bracketed

import manyhands as mh
from manyhands.data import Stored, store
from manyhands.launch.machine import cores, cpu_name

TRAINING: dict[str, Any] = {"model": "mlp", "strategy": "sync", "batch_size": 128, "threads": 1}
EPOCHS = 5
OTHERS = ("mapped", "streamed")
BAR = 0.9


def ways(shards: Path, place: Path, rounds: int, workers: int) -> dict[str, Any]:
    """Train in each way in turn; returns their examples per second."""
    whole = Stored.open(store(str(shards), place / "stored"))
    assert whole.test is not None
    held = [(part.x.numpy().copy(), part.y.numpy().copy()) for part in (whole.train, whole.test)]
    given: dict[str, dict[str, Any]] = {
        "memory": {"data": mh.Data(*held)},
        "mapped": {"data": str(shards)},
        "streamed": {"data": str(shards), "stream": 65536},
    }
    rates: list[tuple[str, float]] = []
    of_processors: list[tuple[str, float]] = []
    for number, way in enumerate(bracketed(dict.fromkeys(OTHERS, "memory")) * rounds):
        run = mh.fit(
            **TRAINING,
            **given[way],
            workers=workers,
            epochs=EPOCHS,
            output=str(place / f"{way}-{number}"),
            progress=False,
        ).record
        spent = sum(each["user"] + each["system"] for each in run["workers"])
        rates.append((way, run["result"]["examples_per_second"]))
        of_processors.append((way, run["result"]["examples"] / spent))
        print(
            f"{way:8s} {rates[-1][1]:10,.0f} examples/s, "
            f"{of_processors[-1][1]:10,.0f} examples/s of processors",
            flush=True,
        )
    return {
        "workers": workers,
        "examples_per_second": _by_way(rates),
        "shares": _shares(rates),
        "examples_per_cpu_second": _by_way(of_processors),
        "cpu_shares": _shares(of_processors),
        "bar": BAR,
    }


def _by_way(runs: list[tuple[str, float]]) -> dict[str, list[float]]:
    return {way: [rate for name, rate in runs if name == way] for way in ("memory", *OTHERS)}


def _shares(runs: list[tuple[str, float]]) -> dict[str, float]:
    """Return each way's part of what memory reaches beside it, the median of the rounds."""
    pairs = {way: beside(runs, way, "memory") for way in OTHERS}
    return {
        way: statistics.median(a / b for a, b in zip(pair[way], pair["memory"], strict=True))
        for way, pair in pairs.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=Path, help="what `manyhands prepare` made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--out", type=Path, help="write the record as JSON")
    options = parser.parse_args()
    record: dict[str, Any] = {"cores": cores(), "cpu": cpu_name(), "load": [os.getloadavg()[0]]}
    with tempfile.TemporaryDirectory(prefix="manyhands-") as name:
        record["training"] = []
        for workers in map(int, options.workers.split(",")):
            place = Path(name) / f"{workers}"
            place.mkdir()
            record["training"].append(ways(options.shards, place, options.rounds, workers))
            print(f"{workers} workers: {record['training'][-1]['shares']}")
    record["load"].append(os.getloadavg()[0])
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    missed = [t for t in record["training"] if min(t["shares"].values()) < BAR]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
