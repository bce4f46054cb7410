"""Losses that stay on the device until they are asked for."""

import pytest
import torch
from torch import nn

from manyhands.model.kernels.cuda_graphs import Graphs
from manyhands.model.replica import Replica


@pytest.mark.parametrize("classifies", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_step_results_that_wait_on_the_device_are_those_of_each_step(
    monkeypatch, classifies, dtype
):
    """A GPU's way of keeping losses, computed on the CPU: kernel by kernel, without capture."""

    def loss(output, target):
        distance = nn.functional.cross_entropy if classifies else nn.functional.mse_loss
        return distance(output, target).to(dtype)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    torch.manual_seed(0)
    replica = Replica(nn.Linear(5, 3), loss, classifies=classifies)
    graphs = Graphs(replica, torch.optim.SGD([replica.params]), None, ours=False, captured=False)
    x = torch.randn(14, 5)
    y = torch.arange(14) % 3 if classifies else torch.randn(14, 3)
    parts = [(x[:7], y[:7]), (x[7:], y[7:])]
    for _ in range(2):  # the second time as if nothing had been kept before
        expected = [replica.gradient(*part) for part in parts]
        for step, part in enumerate(parts, 1):
            graphs.gradient(*part, step)
        found = graphs.settle()
        assert [(step, one.mean, one.examples) for step, one in found] == [
            (step, one.mean, 7) for step, one in enumerate(expected, 1)
        ]
        assert sum(one.correct for _, one in found) == sum(one.correct for one in expected)
