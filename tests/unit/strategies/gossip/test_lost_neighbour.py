"""A step of gossip whose neighbour dies meanwhile."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import manyhands as mh
from manyhands.worker.worker import Batch


@pytest.mark.parametrize("overlap", [False, True])
def test_a_worker_whose_neighbour_dies_has_made_its_own_update(overlap):
    """Those who are left go on from there, and count the step."""

    def died():
        raise mh.WorkerError("a neighbour is gone")

    updates = []
    worker = SimpleNamespace(
        params=torch.zeros(3),
        rank=0,
        step=0,
        config=SimpleNamespace(seed=0),
        comm=SimpleNamespace(size=2, exchange=lambda x, received: died),
        state=SimpleNamespace(params=[torch.zeros(3)]),
        exchanging=nullcontext,
        gradient=lambda batch: torch.ones(3),
        update=updates.append,
    )
    with pytest.raises(mh.WorkerError):
        mh.Gossip(overlap=overlap).step(worker, Batch(None, None, 0.5, 2, 1))
    assert [update.tolist() for update in updates] == [[1, 1, 1]]
