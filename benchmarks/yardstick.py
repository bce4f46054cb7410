"""Examples per second of the strategies that hardly talk, against workers that never do.

`python benchmarks/yardstick.py --workers 2 --out FILE.json`. Every way is a whole run that `fit`
starts, with the same batches per worker and the same kernels; the ways take turns, round by round.
`server` (two workers and a master) is set against `sync` with two workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import manyhands as mh
from manyhands.strategies.strategy import Strategy, Supports

BATCH = 64  # examples per worker and step
TRAIN = 60_000


@dataclass(frozen=True)
class NeverTalk(Strategy):
    """Workers that train each on its own, and exchange nothing at all."""

    name: ClassVar[str] = "never-talk"
    supports: ClassVar[Supports] = Supports(
        many=True,
        whole_batches=False,
        together=True,
        identical=False,
        partition="random-partition",
        deterministic=True,
    )

    def run(self, worker: Any) -> None:
        """Train alone."""
        for batch in worker.batches():
            worker.update(worker.gradient(batch._replace(weight=1.0)))

    def consensus(self, worker: Any) -> Any:
        """Return one's own: nobody else's is known."""
        return worker.params


def speed(strategy: Any, workers: int, steps: int, kernels: str) -> tuple[float, str]:
    """Train; returns examples per second on the training clock, and the kernels that were used."""
    whole = strategy.supports.whole_batches
    each_epoch = TRAIN // (workers * BATCH)
    with tempfile.TemporaryDirectory() as place:
        record = mh.fit(
            "cnn",
            "mnist",
            strategy=strategy,
            workers=workers,
            batch_size=BATCH if whole else BATCH * workers,
            epochs=-(-steps // each_epoch),
            max_steps=steps,
            lr=0.01,
            momentum=0.5,
            kernels=kernels,
            output=str(Path(place) / "run"),
            progress=False,
        ).record
    return record["result"]["examples_per_second"], record["kernels"]["choice"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    ways: dict[str, tuple[Any, int]] = {
        "never talk": (NeverTalk(), options.workers),
        "averaging": (mh.Averaging(), options.workers),
        "hogwild": (mh.Hogwild(), options.workers),
        "gossip": (mh.Gossip(), options.workers),
        "sync": (mh.Sync(), 2),
        "server": (mh.Server(), 2),
    }
    _, kernels = speed(*ways["never talk"], 20, "auto")
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, (strategy, workers) in ways.items():
            found[name].append(speed(strategy, workers, options.steps, kernels)[0])
    result = {
        "workers": options.workers,
        "batch_per_worker": BATCH,
        "steps": options.steps,
        "kernels": kernels,
        "examples_per_second": {n: statistics.median(rates) for n, rates in found.items()},
        "ratios": {
            n: [
                rate / base
                for rate, base in zip(
                    rates, found["sync" if n == "server" else "never talk"], strict=True
                )
            ]
            for n, rates in found.items()
        },
    }
    options.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
