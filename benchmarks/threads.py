"""Threads or workers: plain PyTorch with a thread per core against `sync` with a worker per core.

`python benchmarks/threads.py --out FILE.json`. Both train the same model on batches of the same
size and take turns round by round. Plain PyTorch is a bare loop over batches in memory. Ours is the
second epoch of a whole `mh.fit`, which reads, divides and counts. `one worker` is `mh.fit` with a
thread per core, which separates what our step saves from what the workers bring.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from turns import in_time, in_turns, parser, quartiles, record, seconds, write
from zoo import MODELS, criterion

import manyhands as mh
from manyhands.data import Stored, store
from manyhands.launch.machine import cores

PLAIN, ONE, WORKERS = "plain PyTorch", "one worker", "a worker per core"
CASES = (("cnn", 128), ("cnn", 1024), ("transformer", 64), ("mlp-11m", 64), ("resnet-18", 32))
SAID = {
    "cnn": "CNN, 9,840 parameters",
    "transformer": "transformer, 0.5 million",
    "mlp-11m": "perceptron, 11 million",
    "resnet-18": "ResNet-18, 11 million",
}


def plain(model: str, batch_size: int, folder: Path) -> Callable[[int], float]:
    """Return a function that times one step of PyTorch's own loop, over that many steps."""
    build, data = MODELS[model]
    torch.manual_seed(0)
    module = build()
    loss = criterion(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.5)
    kept = Stored.open(store(data(), folder / "data")).train
    ranges = torch.arange(16 * batch_size).remainder(len(kept)).split(batch_size)
    batches = [kept.batch(each) for each in ranges]

    def step(i: int) -> None:
        x, y = batches[i % len(batches)]
        optimizer.zero_grad()
        loss(module(x), y).backward()
        optimizer.step()

    return lambda steps: seconds(step, steps, meet=lambda: None)


def ours(model: str, batch_size: int, workers: int, folder: Path) -> Callable[[int], float]:
    """Return a function that times one step of `mh.fit`: its second epoch, of that many steps."""
    build, data = MODELS[model]
    loss = criterion(model)
    numbers = count()

    def timed(steps: int) -> float:
        result = mh.fit(
            build,
            data(),
            loss=loss,
            strategy="sync" if workers > 1 else "sequential",
            workers=workers,
            batch_size=batch_size,
            limit=steps * batch_size,
            epochs=2,
            evaluate_every=2,
            lr=0.01,
            momentum=0.5,
            output=str(folder / f"{workers}-{next(numbers)}"),
        )
        epochs: list[dict[str, Any]] = result.record["epochs"]
        return (epochs[1]["seconds"] - epochs[0]["seconds"]) / steps

    return timed


def table(path: Path) -> str:
    """Return the table of a record as Markdown."""
    kept = json.loads(path.read_text())
    lines = [
        f"Time of one step, {kept['machine']['cores']} cores ({kept['machine']['cpu']}):",
        "",
        "| model | batch | plain PyTorch, a thread per core | `sync`, a worker per core "
        "| workers are … times as fast (quartiles) | of this, without workers |",
        "|---|---|---|---|---|---|",
    ]
    for each in kept["records"]:
        ratios = each["ratios"]
        low, high = quartiles(ratios[PLAIN])
        alone = [p / o for p, o in zip(ratios[PLAIN], ratios[ONE], strict=True)]
        lines.append(
            f"| {SAID[each['model']]} | {each['batch_size']} | {each['medians'][PLAIN]:.3g} ms "
            f"| {each['medians'][WORKERS]:.3g} ms "
            f"| {statistics.median(ratios[PLAIN]):.2f} ({low:.2f}–{high:.2f}) "
            f"| {statistics.median(alone):.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rounds=5, steps=100)
    options.add_argument("--models", default=",".join(SAID), help="only these")
    asked = options.parse_args()
    os.environ.pop("OMP_NUM_THREADS", None)  # the other benchmarks' one thread
    torch.set_num_threads(cores())
    made = []
    for model, batch_size in CASES:
        if model not in asked.models.split(","):
            continue
        folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
        steps = max(1, asked.steps // (16 if model == "resnet-18" else batch_size // 64 or 1))
        timers = {
            PLAIN: plain(model, batch_size, folder),
            ONE: ours(model, batch_size, 1, folder),
            WORKERS: ours(model, batch_size, cores(), folder),
        }
        ways = {name: partial(timed, steps) for name, timed in timers.items()}
        found = in_turns(ways, in_time(asked.rounds, asked.seconds))
        what = f"threads, {model}, batch {batch_size}"
        facts = {"model": model, "batch_size": batch_size, "workers": cores()}
        made.append(record(what, found, unit="ms", bars={}, ours=WORKERS, **facts))
        print(what, {name: f"{value:.3g} ms" for name, value in made[-1]["medians"].items()})
    write(asked.out, *made)


if __name__ == "__main__":
    main()
