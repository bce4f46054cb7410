"""The public tests of assignment 2: `manyhands check --course 2-hogwild mine.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.testing import graded

SETTINGS = {"steps": 60, "batch_size": 16, "lr": 0.1, "seed": 1}


def blobs(examples: int = 600) -> tuple[Tensor, Tensor]:
    """Return points around three centres, and their classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(3, (examples,), generator=generator)
    centres = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 4.0]])
    return centres[y] + torch.randn(examples, 2, generator=generator), y


def learns(mine: Any, workers: int) -> None:
    """Train on the blobs, and look at the accuracy."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, (x, y) = nn.Linear(2, 3), blobs()
    mine.train(model, F.cross_entropy, x, y, workers=workers, **SETTINGS)
    right = float((model(x).argmax(1) == y).float().mean())
    assert right > 0.9, f"{right:.0%} right after training, expected more than 90 %"


@graded(1)
def parameters_are_shared(mine: Any, _: Any) -> None:
    """The parameters lie in shared memory."""
    model = nn.Linear(2, 3)
    mine.share(model)
    assert all(p.is_shared() for p in model.parameters()), "a parameter is not in shared memory"


@graded(1)
def one_worker_learns(mine: Any, _: Any) -> None:
    """One worker learns to tell three blobs apart, in the caller's model."""
    learns(mine, 1)


@graded(1)
def two_workers_learn(mine: Any, _: Any) -> None:
    """Two workers learn it too."""
    learns(mine, 2)
