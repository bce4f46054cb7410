"""Assignment 1: parallel SGD by averaging. Fill in what raises NotImplementedError."""

from __future__ import annotations

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor, nn

torch.set_num_threads(1)  # each process has one core; otherwise P = 1 uses all of them


def partition(examples: int, fractions: list[float], seed: int) -> list[np.ndarray]:
    """Return the indices of the examples of each part.

    All indices 0 … examples-1 are shuffled by the seed, and cut into parts whose sizes follow the
    fractions, as [0.7, 0.2, 0.1], whose sum is 1. Each index is in exactly one part.
    """
    raise NotImplementedError("partition")


def sgd(
    model: nn.Module, x: Tensor, y: Tensor, *, steps: int, batch_size: int, lr: float, seed: int
) -> None:
    """Do so many steps of plain SGD with the cross-entropy, on batches drawn by the seed."""
    raise NotImplementedError("sgd")


def average(model: nn.Module, comm: MPI.Comm) -> None:
    """Give every process the mean of all processes' parameters, by collectives of MPI."""
    raise NotImplementedError("average")


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    comm: MPI.Comm,
    *,
    steps: int,
    batch_size: int,
    lr: float,
    seed: int,
) -> None:
    """Train on this process' part of equal size, with `sgd`; then `average`, once, at the end.

    All processes get the same data. Their models may have different weights: training begins with
    those of process 0. `batch_size` is the sum over all processes.
    """
    raise NotImplementedError("train")


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of right answers, without dropout; the model's mode stays as it was."""
    raise NotImplementedError("accuracy")
