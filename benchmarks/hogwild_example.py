"""Hogwild as PyTorch's tutorials show it, against ours, taking turns in one run.

`python benchmarks/hogwild_example.py --out FILE.json`. The shape of PyTorch's own example
(github.com/pytorch/examples, mnist_hogwild), written anew: `share_memory()` on every parameter, one
spawned process per worker, a `DataLoader` that makes each example's tensor in Python, plain SGD.
One thread per worker for both; examples per second from the first step's end, start-up left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from yardstick import BATCH, speed

import manyhands as mh
from manyhands.data import Stored, store
from manyhands.models import cnn


class Images(Dataset[tuple[torch.Tensor, int]]):
    """MNIST as torchvision hands it out: one image at a time, scaled and normalised in Python."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.images[index]).float().div(255).view(1, 28, 28)
        return image.sub(0.1307).div(0.3081), int(self.labels[index])


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        train_set = Stored.open(store("mnist", Path(place))).train
        data = Images(train_set.x.clone().numpy(), train_set.y.clone().numpy())
    _, kernels = speed(mh.Hogwild(), options.workers, 20, "auto")
    found: dict[str, list[float]] = {"ours": [], "the example": []}
    for _ in range(options.rounds):
        found["ours"].append(speed(mh.Hogwild(), options.workers, options.steps, kernels)[0])
        found["the example"].append(theirs(options.workers, options.steps, data))
    result = {
        "workers": options.workers,
        "batch_per_worker": BATCH,
        "steps": options.steps,
        "kernels": kernels,
        "examples_per_second": {n: statistics.median(rates) for n, rates in found.items()},
        "ratios": [a / b for a, b in zip(found["ours"], found["the example"], strict=True)],
    }
    options.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
