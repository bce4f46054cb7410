"""Which constant learning rate and batch size suit several tasks, judged by validation data.

`python benchmarks/run.py --machine large --parts defaults` writes the record that `make results`
makes the tables of docs/results.md from; `python benchmarks/defaults.py --out FILE.json` prints
them. Each round has the next seed: every rate with every batch size on every task of
`default_tasks.py`, one worker on one thread each, as many at once as there are cores. Then eight
workers train the CNN with each strategy whose workers update independently, with the default rate
divided by the number of workers and undivided. The loss is that of the held-out part of the
training set after the last epoch; a task that needs a package which is missing is left out.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from typing import Any

from default_tables import INDEPENDENT, TABLES, Run
from default_tasks import TASKS, Task, missing
from turns import HERE, Record, in_time, parser, write

import manyhands as mh
import manyhands.strategies
from manyhands.config.options import options
from manyhands.launch.machine import cores

RATES = (0.005, 0.01, 0.02, 0.05, 0.1)
BATCHES = (64, 128, 256)
VALIDATION = 0.25
WORKERS = 8


@cache
def build_task(task: str, quick: bool) -> Task:
    """Return a task, made once in each process."""
    make, count = TASKS[task]
    return make(count // 20 if quick else count)


def train_task(quick: bool, task: str, **given: Any) -> Run:
    """Train on a task; returns the validation loss, None if the run diverged, and the seconds."""
    asked, begin = build_task(task, quick), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="manyhands-bench-") as place:
        try:
            found = mh.fit(
                asked.model, asked.data, loss=asked.loss, epochs=asked.epochs, threads=1,
                validation=VALIDATION, kernels="default", output=f"{place}/run", progress=False,
                **given,
            ).record["epochs"][-1]  # fmt: skip
        except mh.DivergedError:
            found = {"validation_loss": None}
    loss = found["validation_loss"]
    finite = loss is not None and math.isfinite(loss)
    took = round(time.perf_counter() - begin, 2)
    return {"loss": loss if finite else None, "seconds": took}


def run_at_once(processes: int, todo: Sequence[Run], quick: bool) -> list[Run]:
    """Return the runs with what each gave, so many at a time."""
    spawn = multiprocessing.get_context("spawn")  # forks of a process with threads may hang
    with ProcessPoolExecutor(min(processes, len(todo)), mp_context=spawn) as pool:
        futures = [pool.submit(train_task, quick, **one) for one in todo]
        return [{**one, **future.result()} for one, future in zip(todo, futures, strict=True)]


def run_grid(names: Iterable[str], seed: int, *, quick: bool) -> list[Run]:
    """Return the runs of one worker: every rate with every batch size on every task."""
    grid = list(product(RATES[1:4:2], BATCHES[:1]) if quick else product(RATES, BATCHES))
    shared = {"strategy": "sequential", "workers": 1, "seed": seed}
    todo = [
        {"task": task, "lr": lr, "batch_size": batch, **shared}
        for task in names
        for lr, batch in grid
    ]
    return run_at_once(cores(), todo, quick)


def run_strategies(seed: int, *, quick: bool) -> list[Run]:
    """Return the runs of many workers with the default rate divided and undivided."""
    workers = 2 if quick else WORKERS
    shared = {"task": "MNIST CNN", "workers": workers, "seed": seed, "lr": mh.SGD().lr}
    todo = [
        {**shared, **given, "lr_scaling": scaling}
        for given in INDEPENDENT.values()
        for scaling in ("inverse", "none")
    ]
    return run_at_once(max(1, cores() // workers), todo, quick)


def main() -> None:
    arguments = parser(__doc__, rounds=3, steps=0)
    arguments.add_argument("--quick", action="store_true", help="a size for trying it out")
    asked = arguments.parse_args()
    places = [HERE, HERE.parent / "examples"]  # where workers import the models from
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, places), os.getenv("PYTHONPATH", "")])
    left_out = {name: reason for name in TASKS if (reason := missing(name))}
    names = [name for name in TASKS if name not in left_out]
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}", flush=True)
    runs: list[Run] = []
    division: list[Run] = []
    found: Record = {
        "what": "validation loss by learning rate and batch size", "unit": "loss", "ours": "",
        "medians": {}, "ratios": {}, "bars": {}, "quick": asked.quick, "left_out": left_out,
        "default": {"lr": mh.SGD().lr, "batch_size": options()["batch_size"].default},
        "runs": runs, "division": division,
    }  # fmt: skip
    for seed in in_time(asked.rounds, asked.seconds):
        begin = time.perf_counter()
        runs += run_grid(names, seed, quick=asked.quick)
        division += run_strategies(seed, quick=asked.quick)
        write(asked.out, found)
        print(f"seed {seed}: {time.perf_counter() - begin:.0f} s", flush=True)
    for table in TABLES.values():
        print(f"\n{table(found)}")


if __name__ == "__main__":
    main()
