"""Kernels are chosen together: all workers propose, time and take the same ones."""

import pytest
import torch
import torch.nn.functional as F
from training import WORLD

from manyhands.comm.mpi import MPICommunicator
from manyhands.model.kernels import tuning
from manyhands.model.replica import Replica
from manyhands.model.zoo import cnn


@pytest.mark.parametrize("most", [0, WORLD.size - 1], ids=["first", "last"])
def test_where_a_batch_is_uneven_all_choose_the_same(tmp_path, monkeypatch, most):
    """One has 16 examples, from which on there is more to choose from, and the others 15."""
    monkeypatch.setattr(torch.backends.nnpack, "is_available", lambda: True)
    monkeypatch.setattr(tuning, "_BUDGET", 0.05)
    monkeypatch.setenv("MANYHANDS_CACHE", str(tmp_path))
    group, count = MPICommunicator(WORLD), 16 if WORLD.rank == most else 15
    batch = torch.randn(count, 1, 28, 28), torch.randint(10, (count,))
    replica = Replica(cnn(), F.nll_loss)
    try:
        chosen = tuning.choose(replica, batch, group.maximum, lambda mine: group.gather(mine)[0])
    finally:
        tuning.switch("default")
    every = WORLD.allgather((chosen.choice, chosen.milliseconds))
    assert all(one == every[0] for one in every)
    assert ("nnpack" in chosen.milliseconds) == (most == 0)
