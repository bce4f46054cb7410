"""The model solution of assignment 2."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
PROCESSES = mp.get_context("fork")


def share(model: nn.Module) -> None:
    """Move the parameters into memory that child processes share; gradients stay private."""
    for p in model.parameters():
        p.grad = None
    model.share_memory()


def work(
    model: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch_size: int,
    lr: float,
    seed: int,
) -> None:
    """Do so many steps of SGD on the shared parameters, without any lock."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randint(len(x), (batch_size,), generator=generator)
        model.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad


def train(
    model: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    *,
    workers: int,
    steps: int,
    batch_size: int,
    lr: float,
    seed: int,
) -> None:
    """Share the model, start `workers` processes that `work` with seeds of their own, and wait."""
    share(model)
    options = {"steps": steps, "batch_size": batch_size, "lr": lr}
    processes = [
        PROCESSES.Process(
            target=work, args=(model, loss, x, y), kwargs={**options, "seed": seed + rank}
        )
        for rank in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            for other in processes:
                other.terminate()
            raise RuntimeError(f"a worker ended with exit code {process.exitcode}")
