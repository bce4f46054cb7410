"""One slow worker, with equal parts and with `--balance speed`: examples per second of whole runs.

`python benchmarks/balance.py --workers 2 --out FILE.json`: worker 1 does three times the work of
the others. Runs with and without balance take turns, so that a noisy machine disturbs them alike.
Whole runs count, the steps until the parts have settled included. The batch is one that takes much
longer than a step's fixed cost: that of the slow worker is a bound which no parts can change.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import in_time, in_turns, parser, record, write

import manyhands as mh

BARS = {2: 1.4, 4: 1.8}  # by workers: times the examples per second of equal parts
FACTOR = 3.0
BATCH = 256  # examples per worker


def way(
    balance: str, workers: int, batch: int, steps: int, facts: dict[str, Any]
) -> Callable[[], float]:
    """Return a run with these parts; gives examples per second."""

    def run() -> float:
        with tempfile.TemporaryDirectory(prefix="manyhands-") as place:
            done = mh.fit(
                "cnn",
                "mnist",
                strategy="sync",
                threads=1,
                workers=workers,
                batch_size=batch * workers,
                max_steps=steps,
                epochs=100,
                slow=f"1:{FACTOR:g}",
                balance=balance,
                kernels=facts.get("kernels", "auto"),
                output=str(Path(place) / "run"),
                progress=False,
            ).record
        facts["kernels"] = done["kernels"]["choice"]  # one choice for all
        if shares := done["strategy"].get("shares"):
            facts["parts"] = shares
        return float(done["result"]["examples_per_second"])

    return run


def main() -> None:
    options = parser(__doc__, rounds=5, steps=150)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--batch", type=int, default=BATCH, help="examples per worker and step")
    asked = options.parse_args()
    workers, batch = asked.workers, asked.batch
    facts: dict[str, Any] = {"workers": workers, "batch_per_worker": batch, "factor": FACTOR}
    names = {"equal parts": "none", "by speed": "speed"}
    ways = {n: way(b, workers, batch, asked.steps, facts) for n, b in names.items()}
    found = in_turns(ways, in_time(asked.rounds, asked.seconds))
    bar = {"equal parts": (BARS.get(workers, 1.0), False)}
    what = f"sync, P={workers}, batch {batch} per worker, one {FACTOR:g}× slower, balanced"
    kwargs: dict[str, Any] = {"unit": "examples/s", "ours": "by speed", "rates": True}
    write(asked.out, record(what, found, bars=bar, **kwargs, **facts))


if __name__ == "__main__":
    main()
