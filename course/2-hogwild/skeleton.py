"""Assignment 2: Hogwild. Fill in each function that raises NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

torch.set_num_threads(1)  # each worker has one core; otherwise one worker uses all of them

Loss = Callable[[Tensor, Tensor], Tensor]
PROCESSES = mp.get_context("fork")  # Process, Queue …: children begin with a copy of everything


def share(model: nn.Module) -> None:
    """Move the parameters into memory that child processes share; gradients stay private."""
    raise NotImplementedError("share")


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
    raise NotImplementedError("work")


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
    """Share the model, start `workers` processes that `work` with seeds of their own, and wait.

    Each does `steps` steps: the caller divides them. If one of them fails, all are ended, and this
    raises RuntimeError.
    """
    raise NotImplementedError("train")
