"""The model solution of assignment 1."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from mpi4py import MPI
from torch import Tensor, nn


def partition(examples: int, fractions: list[float], seed: int) -> list[np.ndarray]:
    """Return the indices of the examples of each part."""
    shuffled = np.random.default_rng(seed).permutation(examples)
    cuts = np.rint(np.cumsum(fractions)[:-1] * examples).astype(int)
    return np.split(shuffled, cuts)


def sgd(
    model: nn.Module, x: Tensor, y: Tensor, *, steps: int, batch_size: int, lr: float, seed: int
) -> None:
    """Do so many steps of plain SGD with the cross-entropy, on batches drawn by the seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randint(len(x), (batch_size,), generator=generator)
        model.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad


def average(model: nn.Module, comm: MPI.Comm) -> None:
    """Give every process the mean of all processes' parameters, by collectives of MPI."""
    for p in model.parameters():
        values = p.detach().numpy()  # the parameter's own memory
        comm.Allreduce(MPI.IN_PLACE, values, MPI.SUM)
        values /= comm.size


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
    """Train on this process' part of equal size, with `sgd`; then `average`, once, at the end."""
    for p in model.parameters():
        comm.Bcast(p.detach().numpy())
    part = torch.from_numpy(partition(len(x), [1 / comm.size] * comm.size, seed)[comm.rank])
    own = batch_size // comm.size
    sgd(model, x[part], y[part], steps=steps, batch_size=own, lr=lr, seed=seed + comm.rank)
    average(model, comm)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of right answers, without dropout; the model's mode stays as it was."""
    before = model.training
    model.eval()
    right = float((model(x).argmax(1) == y).float().mean())
    model.train(before)
    return right
