"""Workers that build different models are told so by name, rank and shapes, all of them."""

import pytest
import torch
from torch import nn
from training import train

import manyhands as mh
from manyhands.errors import ConfigError


def wider(rank):
    return nn.Sequential(nn.Linear(20, 16 + rank), nn.Tanh(), nn.Linear(16 + rank, 4))


def longer(rank):
    return nn.Sequential(nn.Linear(20, 4), *[nn.Linear(4, 4)] * rank)


def finer(rank):
    return nn.Linear(20, 4, dtype=torch.float64 if rank else torch.float32)


DIFFERENT = [
    (wider, r"0\.weight has the shape \(16, 20\) on rank 0, and \(17, 20\) on rank 1"),
    (longer, r"rank 1 has 1\.weight of shape \(4, 4\), and rank 0 does not"),
]


@pytest.mark.parametrize("strategy", ["sync", "averaging", "gossip"])
@pytest.mark.parametrize(("make", "told"), DIFFERENT)
def test_a_run_is_refused(strategy, make, told, blobs, folder, tmp_path, rank, size, comm):
    if size == 1:
        pytest.skip("one worker agrees with itself")
    with pytest.raises(ConfigError, match=f"the models of the workers differ: {told}"):
        train(lambda: make(rank), blobs, comm, tmp_path, strategy=strategy, batch_size=12)


@pytest.mark.parametrize(
    ("make", "told"),
    [*DIFFERENT, (finer, "weight is float32 on rank 0, and float64 on rank 1")],
)
def test_a_loop_is_refused(make, told, rank, size):
    if size == 1:
        pytest.skip("one worker agrees with itself")
    model = make(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=told), mh.join(model, optimizer):
        pass
