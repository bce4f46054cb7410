"""Large models of one host are updated together, and end where they would have ended anyway."""

from itertools import chain

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training import WORLD, distance, large, once, train

import manyhands as mh
from manyhands.allreduce.shared_memory import reduce_through
from manyhands.strategies.sync.sharded_update import LARGE, ShardedUpdate

OPTIMIZERS = {
    "momentum": {},
    "plain": {"momentum": 0.0},
    "nesterov": {"nesterov": True},
    "decay": {"weight_decay": 0.01},
    "some decay": {"weight_decay": 0.01, "no_decay": "*.bias"},
    "schedule": {"schedule": "cosine"},
    "adam": {"optimizer": "adam", "lr": 0.001},
    "adam, decay": {"optimizer": "adam", "lr": 0.001, "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.1, "no_decay": "*.bias"},
    "adamw, schedule": {"optimizer": "adamw", "lr": 0.001, "schedule": "linear", "warmup": 0.3},
}


def given(**more):
    return {"max_steps": 8, "batch_size": 50, "dtype": "float64", "lr": 0.05, **more}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_p_workers_end_where_one_ends(blobs, tmp_path, optimizer):
    options = given(**OPTIMIZERS[optimizer])

    def one():
        alone = train(large, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **options)
        return alone.params.clone()

    expected = once(one)
    worker = train(large, blobs, WORLD, tmp_path, strategy="sync", **options)
    assert worker.params.nbytes > LARGE
    assert isinstance(worker.state, ShardedUpdate) == (WORLD.size > 1)
    assert distance(worker.params, expected) < 1e-12
    every = WORLD.allgather(worker.params.numpy().tobytes())
    assert len(set(every)) == 1  # bit for bit


@pytest.mark.parametrize(
    "other",
    [
        {"clip_norm": 1.0},
        {"strategy": mh.Sync(allreduce="ring")},
        {"optimizer": lambda params: torch.optim.SGD(params, lr=0.05)},
    ],
    ids=["clip_norm", "ring", "factory"],
)
def test_what_needs_the_whole_sum_gets_it(blobs, tmp_path, other):
    options = {"strategy": "sync", **given(max_steps=1), **other}
    if callable(options.get("optimizer")):
        del options["lr"]
    assert train(large, blobs, WORLD, tmp_path, **options).state is None


@pytest.mark.skipif(WORLD.size == 1, reason="there is nobody to share memory with")
@pytest.mark.parametrize("length", [1, WORLD.size, 1000, 300_001, 3_000_000])
def test_every_place_is_one_ranks(length):
    mine = np.arange(length, dtype=np.float64) * (WORLD.rank + 1)
    found, places = np.empty(length), []

    def through(reduced, place):
        places.append((place.start, place.stop))
        reduced *= 2

    for _ in range(3):  # window after window
        places.clear()
        reduce_through(mine, found, WORLD, np.add, through)
        factors = WORLD.size * (WORLD.size + 1)  # twice the sum of 1 … P
        np.testing.assert_array_equal(found, factors * np.arange(length))
        covered = np.zeros(length, dtype=np.int64)
        for start, stop in chain(*WORLD.allgather(places)):
            covered[start:stop] += 1
        assert (covered == 1).all()
