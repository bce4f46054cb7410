"""MNIST for the reports, from the copy that comes with manyhands: no network is needed."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhands.data import Stored
from manyhands.data.bundled import mnist as unpack


def mnist(examples: int = 60_000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, test images and labels; images are (n, 1, 28, 28).

    Args:
        examples: Only so many training examples, for a first try.
    """
    stored = Stored.open(unpack())
    x, y = stored.train.batch(torch.arange(examples))
    test_x, test_y = stored.test.batch(torch.arange(len(stored.test)))
    return x, y, test_x, test_y
