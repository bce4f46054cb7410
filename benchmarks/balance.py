"""One slow worker, with equal parts and with `--balance speed`: examples per second of whole runs.

`python benchmarks/balance.py --workers 2,4`: worker 1 does three times the work of the others. Runs
with and without balance take turns, so that a noisy machine disturbs them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import manyhands as mh
from manyhands.record import cores, cpu_name

BARS = {2: 1.4, 4: 1.8}  # by workers: times the examples per second of equal parts
OPTIONS = {"model": "cnn", "data": "mnist", "strategy": "sync", "threads": 1}


def measure(workers: int, rounds: int, steps: int, factor: float = 3.0) -> dict[str, Any]:
    """Run with equal and with balanced parts in turn; returns their rates and the last parts."""
    rates: dict[str, list[float]] = {"none": [], "speed": []}
    shares: list[Any] = []
    kernels = "auto"
    with tempfile.TemporaryDirectory(prefix="manyhands-") as place:
        for turn in range(rounds):
            for balance, found in rates.items():
                run = mh.fit(
                    **OPTIONS,
                    workers=workers,
                    batch_size=64 * workers,
                    max_steps=steps,
                    epochs=100,
                    slow=f"1:{factor:g}",
                    balance=balance,
                    kernels=kernels,
                    output=str(Path(place) / f"{balance}-{turn}"),
                    progress=False,
                )
                kernels = run.record["kernels"]["choice"]  # one choice for all
                found.append(run.record["result"]["examples_per_second"])
                shares = run.record["strategy"].get("shares", shares)
    return {
        "workers": workers,
        "factor": factor,
        "steps": steps,
        "kernels": kernels,
        "examples_per_second": rates,
        "ratios": [b / a for a, b in zip(rates["none"], rates["speed"], strict=True)],
        "last_parts": shares[-1][1] if shares else None,
    }


def quartiles(values: list[float]) -> tuple[float, float]:
    """Return the quartiles; of one value, that value twice."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="2", help="group sizes, e.g. 2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, help="write the records as JSON")
    options = parser.parse_args()
    print(f"{cores()} cores, {cpu_name()}")
    records = []
    for workers in map(int, options.workers.split(",")):
        record = measure(workers, options.rounds, options.steps)
        records.append(record)
        ratio, (low, high) = statistics.median(record["ratios"]), quartiles(record["ratios"])
        bar = BARS.get(workers)
        verdict = "" if bar is None else f"; bar {bar}: {'pass' if ratio >= bar else 'MISSED'}"
        print(
            f"{workers} workers, one 3 times as slow: balanced runs do {ratio:.2f} times the "
            f"examples per second of equal parts (quartiles {low:.2f}–{high:.2f}), parts at the "
            f"end {record['last_parts']}{verdict}"
        )
    if options.out:
        options.out.write_text(json.dumps(records, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
