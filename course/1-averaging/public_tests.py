"""The public tests of assignment 1: `manyhands check --course 1-averaging mine.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.testing import graded

SETTINGS = {"steps": 60, "batch_size": 32, "lr": 0.2, "seed": 1}


def blobs(examples: int = 600) -> tuple[Tensor, Tensor]:
    """Return points around three centres, and their classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (examples,), generator=generator)
    centres = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 4.0]])
    return centres[y] + torch.randn(examples, 2, generator=generator), y


def linear(seed: int = 0) -> nn.Module:
    """Return a linear model for the blobs."""
    torch.manual_seed(seed)
    return nn.Linear(2, 3)


def flat(model: nn.Module) -> np.ndarray:
    """Return all parameters as one array."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


@graded(1)
def parts_are_disjoint(mine: Any, _: Any) -> None:
    """Each example is in exactly one part."""
    parts = mine.partition(100, [0.7, 0.2, 0.1], seed=3)
    sizes = [len(part) for part in parts]
    assert sizes == [70, 20, 10], f"the sizes of the parts are {sizes}, expected [70, 20, 10]"
    together = sorted(int(i) for part in parts for i in part)
    assert together == list(range(100)), "not each number from 0 to 99 comes exactly once"


@graded(1)
def one_process_learns(mine: Any, _: Any) -> None:
    """Plain SGD of one process learns to tell three blobs apart."""
    model, (x, y) = linear(), blobs()
    mine.sgd(model, x, y, **SETTINGS)
    right = float((model(x).argmax(1) == y).float().mean())
    assert right > 0.9, f"{right:.0%} right after 60 steps, expected more than 90 %"


@graded(1, processes=2)
def average_of_two(mine: Any, comm: Any) -> None:
    """The average of two models is their mean, on both processes."""
    models = [linear(0), linear(1)]
    model = models[comm.rank]
    expected = (flat(models[0]) + flat(models[1])) / 2
    mine.average(model, comm)
    assert np.allclose(flat(model), expected, atol=1e-6), "the parameters are not the mean"
