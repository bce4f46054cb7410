"""Data that is read when it is due: the run of stored data, and of one worker."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from training import UP_TO_THREE, WORLD, distance, record, same_everywhere, smooth, train

import manyhands as mh
from manyhands.data import Stored
from manyhands.worker.checkpoint.folder_layout import newest

pytestmark = UP_TO_THREE
GIVEN = {"batch_size": 24, "dtype": "float64", "epochs": 2, "lr": 0.1}


class Rows(Dataset):
    def __init__(self, split, count=None):
        self.x, self.y = np.array(split.x[:count]), np.array(split.y[:count])
        self.reads = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.reads.append(int(i))
        return self.x[i], self.y[i]


def trained(data, comm, folder, **given):
    place = data.store(folder / f"data-{comm.rank}-{comm.size}-{len(list(folder.iterdir()))}")
    return train(smooth, place, comm, folder, examples=data.examples, **GIVEN, **given)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("sync", {}), ("averaging", {"period": 3}), ("gossip", {})],
)
def test_a_run_is_that_of_stored_data(blobs, tmp_path, strategy, options):
    rows = Rows(Stored.open(blobs).train)
    given = {"strategy": getattr(mh, strategy.capitalize())(**options)}
    lazy = trained(mh.Data(rows, lazy=True, classes=4), WORLD, tmp_path, **given)
    stored = trained(mh.Data(rows, classes=4), WORLD, tmp_path, **given)
    assert torch.equal(lazy.params, stored.params)


def stream(rows):
    return mh.Data(lambda: (rows[i] for i in range(len(rows))), examples=len(rows), classes=4)


def in_order(rows):
    return mh.Data(DataLoader(rows, batch_size=24), classes=4)


def sampled(rows):
    sampler = WeightedRandomSampler([1.0, 2.0] * (len(rows) // 2), len(rows))
    return mh.Data(DataLoader(rows, batch_size=24, sampler=sampler), classes=4)


def shuffled(rows):
    return mh.Data(DataLoader(rows, batch_size=24, shuffle=True), classes=4)


@pytest.mark.parametrize("make", [stream, in_order, shuffled])
def test_many_workers_end_where_one_does(blobs, tmp_path, make):
    rows = Rows(Stored.open(blobs).train)
    many = trained(make(rows), WORLD, tmp_path, strategy="sync")
    one = trained(make(rows), MPI.COMM_SELF, tmp_path, strategy="sequential")
    assert same_everywhere(many, many.params)
    assert distance(many.params, one.params) < 1e-12
    assert float(one.params.norm()) > 0


@pytest.mark.skipif(WORLD.size < 2, reason="a master and a worker are two processes")
@pytest.mark.parametrize("make", [stream, in_order, shuffled])
def test_workers_of_a_server_use_each_example_once_an_epoch(blobs, tmp_path, make):
    rows = Rows(Stored.open(blobs).train, 480)
    data = make(rows)
    place = data.store(tmp_path / "data")
    given = {"examples": data.examples, "strategy": "server", "workers": WORLD.size - 1, **GIVEN}
    found = record(smooth, place, tmp_path, **given)
    assert found["result"]["examples"] == 2 * 480
    assert (found["partition"]["seen"], found["partition"]["twice"]) == (480, 0)
    reads = Counter(itertools.chain(*WORLD.allgather(rows.reads)))
    assert reads.keys() == set(range(480))
    if make is not stream:  # which every worker reads as a whole
        assert min(reads.values()) == 2  # a batch that is tried is read once more


@pytest.mark.parametrize("make", [stream, in_order, sampled, shuffled])
@pytest.mark.parametrize("strategy", ["sync", mh.Averaging(period=7)], ids=["sync", "averaging"])
def test_going_on_is_never_having_stopped(blobs, tmp_path, folder, strategy, make):
    data = make(Rows(Stored.open(blobs).train, 480))
    given = {"strategy": strategy, "checkpoint_every": "3steps", **GIVEN}
    place = data.store(tmp_path / "data")

    def run(name, **more):
        output = Path(folder) / name
        return train(
            smooth, place, WORLD, tmp_path, examples=data.examples, output=output, **more, **given
        )

    whole = run("whole")
    steps = whole.step - 5  # in the second epoch
    run("part", max_steps=steps)
    WORLD.Barrier()
    checkpoint = newest(Path(folder) / "part", pytest.fail)
    assert 0 < checkpoint.step <= steps
    resumed = run("part", checkpoint=str(checkpoint.folder))
    assert resumed.step == whole.step
    assert torch.equal(resumed.params, whole.params)
    assert resumed.training.losses == whole.training.losses
