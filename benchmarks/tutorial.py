"""MNIST by PyTorch DDP, as its tutorials have it; `whole_scripts.py` runs it.

`torchrun --nproc-per-node 4 benchmarks/tutorial.py DATA --steps 2`, where DATA is a folder with
MNIST as `.npy` files (`python -c "from manyhands.data import store; print(store('mnist', '.'))"`).
With `--loader` examples come from a `DataLoader`, one by one; without, as batches from memory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from first_step import noted_cnn
from images import Images
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def batches(images: Any, labels: Any, size: int, loader: bool) -> Any:
    """Yield one process's batches of one epoch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if loader:
        data = Images(images, labels)
        yield from DataLoader(data, batch_size=size, sampler=DistributedSampler(data))
        return
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[rank::ranks]
    for rows in order.split(size):
        x = torch.from_numpy(images[rows.numpy()]).float().div_(255).view(-1, 1, 28, 28)
        yield x.sub_(0.1307).div_(0.3081), torch.from_numpy(labels[rows.numpy()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--loader", action="store_true")
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    # With a loader as torchvision has it: every process holds all of it.
    images, labels = (
        np.load(asked.data / f"train_{part}.npy", mmap_mode=None if asked.loader else "r")
        for part in ("x", "y")
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(noted_cnn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    size, done = asked.batch_size // dist.get_world_size(), 0
    while done < asked.steps:
        for x, y in batches(images, labels, size, asked.loader):
            optimizer.zero_grad()
            F.nll_loss(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == asked.steps:
                break
    dist.barrier()  # or who is last finds gloo's connections closed, and aborts
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
