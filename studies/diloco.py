"""How much loss does rare communication cost? DiLoCo and local SGD against sync, on real text.

`python studies/diloco.py --workers 4 --out diloco.json` trains a small transformer on the Python
standard library's sources with `sync`, and with `averaging` at periods 1, 10 and 50, with and
without an outer optimizer. All see equally many examples. Each method's settings come from a search
of equal size on a validation part, over the same range of inner rates: six of them, or for DiLoCo
three with two outer rates each. The best setting of each runs with more seeds.

The loss per step depends on no bandwidth, so nothing here is slowed down. The time of a step on a
slow network is `manyhands predict`'s and `manyhands lab`'s matter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import manyhands as mh
from manyhands.launch.machine import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from transformer_on_text import BLOCK, LETTERS, Transformer, library, windows

RATES = (1e-3, 1.6e-3, 2.5e-3, 4e-3, 6.3e-3, 1e-2)
OUTER = tuple((lr, outer) for lr in (1e-3, 3e-3, 1e-2) for outer in (0.7, 1.0))  # as many
PERIODS = (1, 10, 50)
Setting = dict[str, Any]


def model() -> torch.nn.Module:
    """Return the model: 0.12 million parameters."""
    return Transformer(64, 2)


def loss(scores: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
    """Return the mean loss per letter, in nats."""
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), letters.flatten())


def blocks(examples: int) -> mh.Data:
    """Return so many blocks of text, and a twentieth more that the search must not see."""
    count = examples + examples // 20
    text = library((count + 1) * BLOCK)
    x, y = windows(text, torch.arange(0, (count - 1) * BLOCK, BLOCK))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:examples], order[examples:]
    return mh.Data(train=(x[train], y[train]), test=(x[test], y[test]))


def methods() -> dict[str, list[Setting]]:
    """Return the settings that are searched for each method."""
    found = {"sync": [{"strategy": "sync", "lr": lr} for lr in RATES]}
    for period in PERIODS:
        local = {"strategy": "averaging", "period": period}
        found[f"averaging, H = {period}"] = [{**local, "lr": lr} for lr in RATES]
        outer = {**local, "outer_optimizer": "sgd", "outer_momentum": 0.9}
        found[f"DiLoCo, H = {period}"] = [{**outer, "lr": lr, "outer_lr": o} for lr, o in OUTER]
    return found


def run(data: mh.Data, setting: Setting, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Train once; return the losses."""
    workers = {"workers": asked.workers, "batch_size": asked.batch_size, "max_steps": asked.steps}
    with tempfile.TemporaryDirectory() as folder:
        result = mh.fit(
            model, data, loss=loss, optimizer="adamw", validation=0.05, epochs=1000, seed=seed,
            threads=1, kernels="default", output=f"{folder}/run", progress=False, **workers,
            **setting,
        )  # fmt: skip
        last = result.record["epochs"][-1]
        return {"validation": last["validation_loss"], "test": last["test_loss"]}


def search(data: mh.Data, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each method: every setting that was tried, and the best with its seeds."""
    rows = []
    for name, settings in methods().items():
        tried = []
        for setting in settings:
            found = run(data, setting, 0, asked)
            tried.append({**setting, **found})
            print(name, setting, found, file=sys.stderr, flush=True)
        best = min(range(len(settings)), key=lambda i: tried[i]["validation"])
        more = [run(data, settings[best], seed, asked) for seed in range(1, asked.seeds)]
        tests = [tried[best]["test"], *(one["test"] for one in more)]
        print(name, "best", settings[best], tests, file=sys.stderr, flush=True)
        rows.append({"method": name, "tried": tried, "best": settings[best], "test": tests})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print the losses beside sync's."""
    table = Table("method", "best", "test loss, nats a letter", "spread", "against sync")
    base = statistics.median(rows[0]["test"])
    for row in rows:
        middle, tests = statistics.median(row["test"]), row["test"]
        best = " ".join(f"{k} {v}" for k, v in row["best"].items() if k in ("lr", "outer_lr"))
        spread = f"{min(tests):.3f} to {max(tests):.3f}"
        table.add_row(row["method"], best, f"{middle:.3f}", spread, f"{middle / base - 1:+.1%}")
    Console().print(table)


def main(arguments: list[str] | None = None) -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="of all workers together")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=40_000, help="blocks of 64 letters")
    parser.add_argument("--out", type=Path, help="where the record is written")
    asked = parser.parse_args(arguments)
    rows = search(blocks(asked.examples), asked)
    show(rows)
    if asked.out:
        given = {name: value for name, value in vars(asked).items() if name != "out"}
        record = {"study": "diloco", "given": given, "machine": machine(), "rows": rows}
        record["model"] = {"parameters": sum(p.numel() for p in model().parameters())}
        record["letters"] = LETTERS
        asked.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
