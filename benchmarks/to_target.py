"""Seconds of training until 98 % on MNIST: ours in two settings, and a repaired student solution.

`python benchmarks/to_target.py --workers 2 --out FILE.json`. Ours runs with the defaults and with
`--preset one-cycle`. Theirs is `solution.py` with the settings of its source, which nobody tuned.
The records name the settings of every run. A time to a target depends on two things, which the
records keep apart: the epochs that the settings need, and the steps per second of the program. No
time includes start-up or the test after each epoch. Each round has the next seed, since chance
decides whether an epoch ends just above the target or just below.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from turns import HERE, Record, in_time, in_turns, parser, record, write

import manyhands as mh
from manyhands.data import store
from manyhands.launch.mpi import find_mpi, mpiexec_command

TARGET = 0.98
MOST = 50  # epochs after which a run is given up
SETTINGS = ("batch_size", "optimizer", "lr", "momentum", "schedule", "warmup")
PRESETS = ("none", "one-cycle")
THEIRS = "the solution"
BARRED = "one-cycle"  # the setting that the bar is about


class Reached(NamedTuple):
    """When a run had reached the target: seconds of training, epochs, steps; and its settings."""

    seconds: float
    epochs: int
    steps: int
    settings: Mapping[str, Any]


def ours(workers: int, strategy: str, seed: int, preset: str) -> Reached:
    """Return when our run reached the target, with all earlier runs that ended below it.

    A rate that falls needs a length: the run is first planned for the default number of epochs,
    and trained anew over twice as many where it ends below the target. All of that counts.
    """
    longer = {"epochs": MOST} if preset == "none" else {}
    seconds, epochs, steps = 0.0, 0, 0
    while epochs < MOST:
        with tempfile.TemporaryDirectory(prefix="manyhands-bench-") as place:
            found = mh.fit(
                "cnn", "mnist", strategy=strategy, workers=workers, target_accuracy=TARGET,
                seed=seed, preset=preset, output=f"{place}/run", progress=False, **longer,
            ).record  # fmt: skip
        seconds += found["epochs"][-1]["seconds"]
        epochs += len(found["epochs"])
        steps += found["result"]["steps"]
        if found["result"]["seconds_to_target"] is not None:
            return Reached(seconds, epochs, steps, {n: found["config"][n] for n in SETTINGS})
        longer = {"epochs": 2 * len(found["epochs"])}
    raise RuntimeError(f"{strategy}, preset {preset}, is below {TARGET} after {epochs} epochs")


def theirs(workers: int, data: Path, seed: int) -> Reached:
    """Return when the solution reached the target."""
    arguments = [str(HERE / "solution.py"), str(data), "--target", str(TARGET)]
    arguments += ["--seed", str(seed)]
    line, environment = mpiexec_command(find_mpi(), workers, arguments)
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(line, env=environment, check=True, capture_output=True, text=True)
    reached = json.loads(done.stdout.splitlines()[-1])
    if reached is None:
        raise RuntimeError(f"the solution did not reach {TARGET}")
    return Reached(**reached)


def way(preset: str) -> str:
    """Return what a table calls our runs with a preset."""
    return "ours, defaults" if preset == "none" else f"ours, preset {preset}"


def describe(what: str, preset: str, runs: Mapping[str, list[Reached]], bar: float) -> Record:
    """Return the record of our runs with one preset against the solution's."""
    mine = {name: runs[name] for name in (way(preset), THEIRS)}
    return record(
        f"{what}, {way(preset).removeprefix('ours, ')}",
        {name: [run.seconds for run in each] for name, each in mine.items()},
        unit="s",
        bars={THEIRS: (bar, False)} if preset == BARRED else {},
        ours=way(preset),
        settings={name: dict(each[0].settings) for name, each in mine.items()},
        epochs={name: [run.epochs for run in each] for name, each in mine.items()},
        steps_per_second={
            name: [run.steps / run.seconds for run in each] for name, each in mine.items()
        },
    )


def table(path: Path) -> str:
    """Return a record as Markdown: for each way its settings, time, epochs and steps per second."""
    if not path.exists():
        return "No records yet."
    lines = [
        "| runs | settings | seconds | times as fast | epochs | steps per second |",
        "|---|---|---|---|---|---|",
    ]
    records = json.loads(path.read_text())["records"]
    lines += [_line(found, found["ours"]) for found in records]
    return "\n".join([*lines, _line(records[0], THEIRS)])


def _line(found: Record, name: str) -> str:
    settings = found.get("settings", {}).get(name, {})
    rates = found.get("steps_per_second", {}).get(name, [])
    ratios = found["ratios"][THEIRS] if name != THEIRS else []
    cells = (
        "the reference solution" if name == THEIRS else name,
        ", ".join(f"{n} {v}" for n, v in settings.items()) or "not in the record",
        f"{found['medians'][name]:.4g}",
        f"{statistics.median(ratios):.2f}" if ratios else "–",
        ", ".join(map(str, found.get("epochs", {}).get(name, ()))) or "–",
        f"{statistics.median(rates):.4g}" if rates else "–",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    arguments = parser(__doc__, rounds=1, steps=0)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--strategy", default="sync")
    asked = arguments.parse_args()
    data = store("mnist", Path(tempfile.gettempdir()))
    seeds = {preset: count() for preset in PRESETS}
    their_seeds = count(1234)
    ways = {
        way(preset): lambda preset=preset: ours(
            asked.workers, asked.strategy, next(seeds[preset]), preset
        )
        for preset in PRESETS
    }
    ways[THEIRS] = lambda: theirs(asked.workers, data, next(their_seeds))
    runs = in_turns(ways, in_time(asked.rounds, asked.seconds))
    bar = 6.0 if asked.workers < 8 else 10.0
    what = f"time to 98 % on MNIST, {asked.strategy}, P={asked.workers}"
    facts = {"workers": asked.workers, "strategy": asked.strategy}
    write(asked.out, *({**describe(what, p, runs, bar), **facts} for p in PRESETS))


if __name__ == "__main__":
    main()
