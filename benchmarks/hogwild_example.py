"""Hogwild as PyTorch's tutorials show it, against ours, taking turns in one run.

`python benchmarks/hogwild_example.py --out FILE.json`. The shape of PyTorch's own example
(github.com/pytorch/examples, mnist_hogwild), written anew: `share_memory()` on every parameter, one
spawned process per worker, a `DataLoader` that makes each example's tensor in Python, plain SGD.
One thread per worker for both; examples per second from the first step's end, start-up left out.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from images import Images
from torch.utils.data import DataLoader
from turns import in_time, in_turns, parser, record, write
from yardstick import BATCH, trained

import manyhands as mh
from manyhands.data import Stored, store
from manyhands.model.zoo import cnn


def train(
    rank: int, model: torch.nn.Module, data: Images, steps: int, barrier: Any, out: Any
) -> None:
    """Train one worker; what it did per second goes into the queue."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    model.train()
    done, begin = 0, 0.0
    while done <= steps:
        for x, y in loader:
            optimizer.zero_grad()
            F.nll_loss(model(x), y).backward()
            optimizer.step()
            if done == 0:
                barrier.wait()
                begin = time.perf_counter()
            done += 1
            if done > steps:
                break
    out.put(time.perf_counter() - begin)


def theirs(workers: int, steps: int, data: Images) -> float:
    """Return the examples per second of all workers together, by the slowest one's time."""
    context = mp.get_context("spawn")
    model = cnn()
    model.share_memory()
    barrier, out = context.Barrier(workers), context.Queue()
    crew = [
        context.Process(target=train, args=(rank, model, data, steps, barrier, out))
        for rank in range(workers)
    ]
    for process in crew:
        process.start()
    seconds = [out.get(timeout=600) for _ in crew]
    for process in crew:
        process.join()
    return workers * steps * BATCH / max(seconds)


def main() -> None:
    options = parser(__doc__, rounds=5, steps=200)
    options.add_argument("--workers", type=int, default=2)
    asked = options.parse_args()
    workers, steps = asked.workers, asked.steps
    with tempfile.TemporaryDirectory() as place:
        train_set = Stored.open(store("mnist", Path(place))).train
        data = Images(train_set.x.clone().numpy(), train_set.y.clone().numpy())
    kernels = trained(mh.Hogwild(), workers, 20, "auto")["kernels"]["choice"]

    def ours() -> float:
        run = trained(mh.Hogwild(), workers, steps, kernels)
        return float(run["result"]["examples_per_second"])

    ways = {"ours": ours, "PyTorch's example": lambda: theirs(workers, steps, data)}
    found = in_turns(ways, in_time(asked.rounds, asked.seconds))
    bars = {"PyTorch's example": (2.0, False)}
    facts = {"workers": workers, "batch_per_worker": BATCH, "kernels": kernels}
    what = f"hogwild, P={workers}"
    write(asked.out, record(what, found, unit="examples/s", rates=True, bars=bars, **facts))


if __name__ == "__main__":
    main()
