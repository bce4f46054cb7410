"""Seconds of training until 98 % on MNIST: ours as it comes, and a student's solution, repaired.

`python benchmarks/to_target.py --workers 2 --out FILE.json`. Ours has the product's default
settings, and is told to stop at the target; where it ends below, it is trained anew over twice as
many epochs, and all of that counts. Theirs is `solution.py` with the settings of its source. Tests,
which both do after each epoch, and start-up are left out of both times. Each round has the next
seed: whether an epoch ends just above the target or just below is luck.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from itertools import count
from pathlib import Path
from typing import NamedTuple

from turns import HERE, in_time, in_turns, parser, record, write

import manyhands as mh
from manyhands.data import store
from manyhands.mpis import command, find_mpi

TARGET = 0.98
MOST = 50  # epochs after which it is given up


class Reached(NamedTuple):
    """When a run had reached the target: seconds of training, and the epoch it was."""

    seconds: float
    epochs: int


def ours(workers: int, strategy: str, seed: int) -> Reached:
    """Return the seconds and epochs of our run, and of those before it that ended below."""
    seconds, epochs, longer = 0.0, 0, {}
    while epochs < MOST:
        with tempfile.TemporaryDirectory(prefix="manyhands-bench-") as place:
            record = mh.fit(
                "cnn", "mnist", strategy=strategy, workers=workers, target_accuracy=TARGET,
                seed=seed, output=f"{place}/run", progress=False, **longer,
            ).record  # fmt: skip
        seconds += record["epochs"][-1]["seconds"]
        epochs += len(record["epochs"])
        if record["result"]["seconds_to_target"] is not None:
            return Reached(seconds, epochs)
        longer = {"epochs": 2 * len(record["epochs"])}
    raise RuntimeError(f"{strategy} did not reach {TARGET} within {epochs} epochs")


def theirs(workers: int, data: Path, seed: int) -> Reached:
    """Return the seconds and epochs of the solution."""
    arguments = [str(HERE / "solution.py"), str(data), "--target", str(TARGET)]
    arguments += ["--seed", str(seed)]
    line, environment = command(find_mpi(), workers, arguments)
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(line, env=environment, check=True, capture_output=True, text=True)
    reached = json.loads(done.stdout.splitlines()[-1])
    if reached is None:
        raise RuntimeError(f"the solution did not reach {TARGET}")
    return Reached(**reached)


def main() -> None:
    arguments = parser(__doc__, rounds=1, steps=0)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--strategy", default="sync")
    asked = arguments.parse_args()
    data = store("mnist", Path(tempfile.gettempdir()))
    seeds, their_seeds = count(), count(1234)
    ways = {
        "ours": lambda: ours(asked.workers, asked.strategy, next(seeds)),
        "the solution": lambda: theirs(asked.workers, data, next(their_seeds)),
    }
    runs = in_turns(ways, in_time(asked.rounds, asked.seconds))
    found = {way: [run.seconds for run in those] for way, those in runs.items()}
    epochs = {way: [run.epochs for run in those] for way, those in runs.items()}
    bar = {"the solution": (6.0 if asked.workers < 8 else 10.0, False)}
    what = f"time to 98 % on MNIST, {asked.strategy}, P={asked.workers}"
    facts = {"workers": asked.workers, "strategy": asked.strategy, "epochs": epochs}
    write(asked.out, record(what, found, unit="s", bars=bar, **facts))


if __name__ == "__main__":
    main()
