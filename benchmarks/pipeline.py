"""A model in two parts: MPI with micro-batches against torch RPC without them, and unsplit.

`python benchmarks/pipeline.py --out FILE.json`. Every round runs the product itself once each way,
in a group of its own; the ways take turns, so that a noisy machine disturbs them alike. What counts
is the training clock: start-up and evaluation are not on it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import manyhands as mh

OURS = "mpi, 4 micro-batches"

WAYS: dict[str, dict[str, Any]] = {
    OURS: {"strategy": "pipeline", "micro_batches": 4},
    "mpi, whole batches": {"strategy": "pipeline", "micro_batches": 1},
    "rpc, whole batches": {"strategy": "pipeline", "transport": "rpc"},
    "unsplit": {"strategy": "sequential"},
}


def measure(rounds: int, batch_size: int, steps: int) -> dict[str, Any]:
    """Return the examples per second of every way, and how often ours goes into each, by round."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    kernels: dict[str, str] = {}
    for _ in range(rounds):
        for name, way in WAYS.items():
            with tempfile.TemporaryDirectory(prefix="manyhands-bench-") as place:
                result = mh.fit(
                    "cnn", "mnist", **way, batch_size=batch_size, max_steps=steps, epochs=9,
                    threads=1, progress=False, output=f"{place}/run",
                )  # fmt: skip
            found[name].append(result.record["result"]["examples_per_second"])
            kernels[name] = result.record["kernels"]["choice"]
    return {
        "batch_size": batch_size,
        "steps": steps,
        "kernels": kernels,
        "examples_per_second": {n: statistics.median(rates) for n, rates in found.items()},
        "ratios": {
            n: [ours / theirs for ours, theirs in zip(found[OURS], found[n], strict=True)]
            for n in found
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    record = measure(options.rounds, options.batch_size, options.steps)
    options.out.write_text(json.dumps(record) + "\n")
    for name, rate in record["examples_per_second"].items():
        ratio = statistics.median(record["ratios"][name])
        print(f"{name:22} {rate:8.0f} examples/s   ours is {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
