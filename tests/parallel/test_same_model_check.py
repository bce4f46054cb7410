"""Workers that build different models are told so by name, rank and shapes, all of them."""

import pytest
import torch
from torch import nn
from training import train

import manyhands as mh
from manyhands.errors import ConfigError
from manyhands.strategies import STRATEGIES


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


# Without hogwild, whose group is of processes and not of MPI's: see tests/system.
WAYS = {
    "sync": lambda size: (mh.Sync(), size),
    "averaging": lambda size: (mh.Averaging(), size),
    "gossip": lambda size: (mh.Gossip(), size),
    "server": lambda size: (mh.Server(masters=1), size - 1),
    "pipeline": lambda size: (mh.Pipeline(stages=size), 1),
    "tensor": lambda size: (mh.TensorParallel(slices=size), 1),
}


def test_every_strategy_of_several_processes_is_tried():
    assert {*WAYS, "sequential", "hogwild"} == set(STRATEGIES)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize(("make", "told"), DIFFERENT)
def test_a_run_is_refused(name, make, told, blobs, folder, tmp_path, rank, size, comm):
    if size == 1:
        pytest.skip("one worker agrees with itself")
    strategy, workers = WAYS[name](size)
    given = {"strategy": strategy, "workers": workers, "batch_size": 12}
    with pytest.raises(ConfigError, match=f"the models of the workers differ: {told}"):
        train(lambda: make(rank), blobs, comm, tmp_path, **given)


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
