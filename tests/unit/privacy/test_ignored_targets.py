"""Targets that a loss passes over: a record scales its own gradient only."""

import torch
import torch.nn.functional as F
from torch import nn

from manyhands.model.replica import Replica
from manyhands.privacy.clipping import PerExample
from manyhands.privacy.layerwise import Layerwise


class Swap(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


def tokens():
    torch.manual_seed(0)
    return Replica(nn.Sequential(nn.Linear(3, 5), Swap()), F.cross_entropy, classifies=False)


def test_layer_by_layer_is_as_example_by_example():
    x = torch.randn(4, 6, 3)
    y = torch.randint(0, 5, (4, 6))
    y[0, 1:] = y[1, 3:] = -100  # one target, three, six and six
    sums = []
    for made in (Layerwise, PerExample):
        replica = tokens()
        found = (
            made.of(replica, chunk_mb=64, example=x[:1])
            if made is Layerwise
            else made(replica, chunk_mb=64)
        )
        out = torch.zeros(replica.dim)
        found.add(x, y, 100.0, out)  # nothing is cut: a wrong scale shows
        sums.append(out)
    assert torch.allclose(*sums, atol=1e-6)
    assert float(sums[0].norm()) > 0
