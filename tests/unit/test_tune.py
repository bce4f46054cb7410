"""Kernels: the fastest measured is chosen and remembered, alike everywhere; results agree."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from manyhands import tune
from manyhands.models import cnn
from manyhands.replica import Replica


@pytest.fixture
def replica(monkeypatch, tmp_path):
    monkeypatch.setenv("MANYHANDS_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "_BUDGET", 0.05)
    torch.manual_seed(0)
    yield Replica(cnn().eval(), F.nll_loss)
    torch.backends.mkldnn.enabled = True


def batch():
    return torch.randn(4, 1, 28, 28), torch.randint(10, (4,))


def alone(values):
    return values


def test_the_fastest_is_chosen_and_remembered(replica):
    first = tune.choose(replica, batch(), alone, alone)
    assert first.source == "measured"
    assert first.choice == min(first.milliseconds, key=first.milliseconds.get)
    again = tune.choose(replica, batch(), alone, alone)
    assert (again.source, again.choice) == ("cached", first.choice)


def test_the_slowest_worker_decides(replica):
    def slowest(values):
        return np.array([9.0, 9.0, 1.0, 9.0])

    assert tune.choose(replica, batch(), slowest, alone).choice == "channels-last"


def test_rank_0_s_cache_decides(replica):
    chosen = tune.choose(replica, batch(), alone, lambda mine: [5.0, 1.0, 5.0, 5.0])
    assert (chosen.source, chosen.choice) == ("cached", "native")


def test_a_damaged_cache_is_measured_again(replica, tmp_path):
    tune.choose(replica, batch(), alone, alone)
    next(tmp_path.glob("kernels-*.json")).write_text("{")
    assert tune.choose(replica, batch(), alone, alone).source == "measured"


def test_all_kernels_compute_the_same_gradient(replica):
    x, y = batch()
    gradients = {}
    for name in ("default", "native", "channels-last", "native-channels-last"):
        tune.apply(replica, name)
        replica.gradient(x, y)
        gradients[name] = replica.grad.clone()
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, gradients["default"], atol=1e-5), name
