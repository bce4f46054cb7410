"""A sync run that loses three of its workers, one after another, beside runs that lose nobody.

`python studies/survival.py --workers 8 --out FILE --figure FILE`: workers 7, 0 and 3 are killed
(SIGKILL) after a quarter, a half and three quarters of the run. The others go on by themselves
(`--on-failure continue`). Runs with and without deaths take turns, each pair with its own seed.
The figure is drawn from the record: `--from FILE --figure FILE` draws it again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import manyhands as mh
from manyhands.launch.machine import cores, cpu_name
from manyhands.testing import Faults

LOST = 10.0  # the bar: seconds per death, from the last word of the dead until training went on
WINDOW = 20  # steps over which a rate or a loss is averaged


def fit(workers: int, epochs: int, seed: int, output: Path, kernels: str) -> mh.Result:
    return mh.fit(
        model="cnn",
        data="mnist",
        strategy="sync",
        workers=workers,
        epochs=epochs,
        seed=seed,
        lr=0.05,
        threads=1,
        kernels=kernels,
        on_failure="continue",
        timeout=60.0,
        output=str(output),
        progress=False,
    )


def dying(workers: int, steps: int) -> Faults:
    """Return three deaths: the last worker, the first, one in between."""
    faults = Faults()
    for place, rank in enumerate((workers - 1, 0, workers // 2 - 1), 1):
        faults.kill(rank=rank, step=place * steps // 4, phase=("gradient", "exchange")[place % 2])
    return faults


def curve(result: mh.Result) -> dict[str, list[float]]:
    """Return time, examples per second and loss, every few steps, as a survivor noted them."""
    record = result.record
    who = record["workers"][0]["rank"]
    lines = (result.output / "steps.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["rank"] == who]
    took = np.array(
        [sum(row[k] for k in ("compute", "wait", "communicate", "update")) for row in rows]
    )
    for event in record["story"]:
        took[min(event["step"], len(took) - 1)] += max(0.0, event["noticed"]) + event["seconds"]
    ends = np.cumsum(took)
    loss = np.array([np.nan if row["loss"] is None else row["loss"] for row in rows])
    cuts = range(0, len(rows) - WINDOW + 1, WINDOW)
    update = record["config"]["batch_size"]
    return {
        "seconds": [round(float(ends[i + WINDOW - 1]), 3) for i in cuts],
        "examples_per_second": [
            round(update * WINDOW / float(took[i : i + WINDOW].sum()), 1) for i in cuts
        ],
        "loss": [round(float(np.nanmean(loss[i : i + WINDOW])), 4) for i in cuts],
    }


def told(result: mh.Result, wall: float) -> dict[str, Any]:
    """Return what is kept of a run."""
    keys = ("accuracy", "loss", "seconds", "steps", "examples", "examples_per_second")
    kept = {key: result.record["result"][key] for key in keys}
    return {**kept, "wall": round(wall, 1), "story": result.record["story"], "curve": curve(result)}


def measure(workers: int, epochs: int, rounds: int, kernels: str) -> dict[str, Any]:
    """Do the runs in turn."""
    runs: dict[str, list[dict[str, Any]]] = {"undisturbed": [], "struck": []}
    with tempfile.TemporaryDirectory(prefix="manyhands-") as place:
        for seed in range(rounds):
            begin = time.monotonic()
            whole = fit(workers, epochs, seed, Path(place) / f"whole-{seed}", kernels)
            runs["undisturbed"].append(told(whole, time.monotonic() - begin))
            begin = time.monotonic()
            with dying(workers, whole.record["result"]["steps"]):
                struck = fit(workers, epochs, seed, Path(place) / f"struck-{seed}", kernels)
            runs["struck"].append(told(struck, time.monotonic() - begin))
    return {"workers": workers, "epochs": epochs, "kernels": kernels, "runs": runs}


def verdict(found: dict[str, Any]) -> str:
    """Return the figures and whether they reach the bars."""
    runs = found["runs"]
    whole, struck = ([run["accuracy"] for run in runs[k]] for k in ("undisturbed", "struck"))
    lost = [e["noticed"] + e["seconds"] for run in runs["struck"] for e in run["story"]]
    deaths = [len(run["story"]) for run in runs["struck"]]
    spread = max(whole) - min(whole)
    apart = statistics.mean(struck) - statistics.mean(whole)
    return (
        f"{found['workers']} workers, {deaths} deaths; accuracy {_range(whole)} undisturbed, "
        f"{_range(struck)} struck (means {100 * apart:+.2f} points apart, the undisturbed "
        f"spread over {100 * spread:.2f}); at most {max(lost):.3f} s lost per death, bar "
        f"{LOST:g} s: {'pass' if max(lost) < LOST else 'MISSED'}"
    )


def _range(values: list[float]) -> str:
    return f"{100 * min(values):.2f} to {100 * max(values):.2f} %"


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the first pair of runs: examples per second and loss over time, deaths marked."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(7.5, 5.2))
    for name, colour in (("undisturbed", "#7f7f7f"), ("struck", "#1f77b4")):
        line = found["runs"][name][0]["curve"]
        label = "nobody dies" if name == "undisturbed" else "three workers die"
        upper.plot(line["seconds"], line["examples_per_second"], color=colour, label=label)
        lower.plot(line["seconds"], line["loss"], color=colour, label=label)
    for event in found["runs"]["struck"][0]["story"]:
        for axes in (upper, lower):
            axes.axvline(event["at"], color="#d62728", linestyle=":", linewidth=1)
        upper.annotate(
            f"worker {event['lost'][0]} dies, {event['workers']} go on",
            (event["at"], 500), rotation=90, fontsize=7, va="bottom", ha="right",
        )  # fmt: skip
    upper.set_ylabel("examples per second")
    upper.set_ylim(bottom=0)
    upper.legend(frameon=False, fontsize=8, loc="lower right")
    lower.set_ylabel("training loss of a survivor's part")
    lower.set_yscale("log")
    lower.set_xlabel("seconds of training")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--out", type=Path, help="write the record as JSON")
    parser.add_argument("--from", dest="source", type=Path, help="read a record, measure nothing")
    parser.add_argument("--figure", type=Path, help="draw the first pair of runs")
    options = parser.parse_args()
    if options.source:
        found = json.loads(options.source.read_text())
    else:
        machine = {"cores": cores(), "cpu": cpu_name()}
        names = ("workers", "epochs", "rounds", "kernels")
        given = [f"--{name} {getattr(options, name)}" for name in names]
        command = " ".join(["studies/survival.py", *given])
        measured = measure(options.workers, options.epochs, options.rounds, options.kernels)
        found = {"machine": machine, "command": command, **measured}
    print(verdict(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.figure:
        draw(found, options.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
