"""Balanced workers end where one worker ends, whatever was measured; a slow one changes no bit."""

import shutil
from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from test_resume import at, with_everything
from test_resume import train as checkpointed
from training import distance, record, same_everywhere, smooth, train

from manyhands.worker import balancing
from manyhands.worker.balancing import Balance

WORLD = MPI.COMM_WORLD
BALANCED = {"strategy": "sync", "balance": "speed"}


@pytest.fixture
def measured(monkeypatch):
    """Let the clock say how slow each worker is: the last rank at first, later rank 0."""

    def seconds(worker):
        late = worker.step > 40
        slowness = 1 + (worker.rank if not late else worker.comm.size - worker.rank)
        return 0.001 * slowness * (1 + worker.step % 3)

    monkeypatch.setattr(balancing, "computing", seconds)


@pytest.mark.parametrize("batch_size", [96, 50])
def test_the_sum_of_gradients_is_that_of_one_worker(blobs, tmp_path, measured, batch_size):
    given = {"epochs": 2, "batch_size": batch_size, "dtype": "float64", "lr": 0.05}
    alone = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    together = train(smooth, blobs, WORLD, tmp_path, **BALANCED, **given)
    assert alone.step == together.step
    assert distance(alone.params, together.params) < 1e-10
    if WORLD.size > 1:
        assert len(together.hook(Balance).history) > 2  # the parts did change on the way


def test_it_is_the_sum_of_the_unbalanced_run_step_by_step(blobs, tmp_path, measured):
    given = {"max_steps": 50, "batch_size": 64, "dtype": "float64", "lr": 0.1, "momentum": 0.0}
    plain = train(smooth, blobs, WORLD, tmp_path, strategy="sync", **given)
    moved = train(smooth, blobs, WORLD, tmp_path, **BALANCED, **given)
    assert distance(plain.params, moved.params) < 1e-10
    assert same_everywhere(moved, moved.params)


def test_all_workers_decide_the_same(blobs, tmp_path, measured):
    worker = train(smooth, blobs, WORLD, tmp_path, epochs=2, batch_size=60, **BALANCED)
    histories = worker.comm.gather(worker.hook(Balance).history)
    assert all(other == histories[0] for other in histories)
    assert worker.facts["shares"] is worker.hook(Balance).history
    for _, parts in histories[0]:
        assert sum(parts) == 60
        assert min(parts) >= 1


def test_real_measurements_change_nothing_but_who_does_what(blobs, tmp_path):
    given = {"epochs": 1, "batch_size": 40, "dtype": "float64"}
    alone = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    slow = {"slow": f"{WORLD.size - 1}:4:sleep"}
    together = train(smooth, blobs, WORLD, tmp_path, **BALANCED, **slow, **given)
    assert distance(alone.params, together.params) < 1e-10


def test_as_many_examples_as_workers_leaves_everybody_one(blobs, tmp_path, measured):
    given = {"max_steps": 60, "batch_size": WORLD.size, "dtype": "float64"}
    alone = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    together = train(smooth, blobs, WORLD, tmp_path, **BALANCED, **given)
    assert together.hook(Balance).history == [[0, [1] * WORLD.size]]
    assert distance(alone.params, together.params) < 1e-10


@pytest.mark.parametrize(
    ("strategy", "slow"),
    [("sync", "0:2"), ("sync", "0:3.5"), ("sync", "0:1.5:sleep"), ("gossip", "0:2.5")],
)
def test_a_slow_worker_ends_with_the_same_bits(blobs, tmp_path, strategy, slow):
    """Dropout and BatchNorm included: the extra work leaves no trace."""
    given = {"max_steps": 6, "batch_size": 40, "strategy": strategy}
    plain = train(with_everything, blobs, WORLD, tmp_path, **given)
    slowed = train(with_everything, blobs, WORLD, tmp_path, slow=slow, **given)
    assert torch.equal(plain.params, slowed.params)
    buffers = [worker.replica.module.buffers() for worker in (plain, slowed)]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*buffers, strict=True))
    assert plain.training.losses == slowed.training.losses


def test_the_record_says_who_had_which_share_when(blobs, tmp_path, measured):
    found = record(smooth, blobs, tmp_path, epochs=2, batch_size=100, **BALANCED)
    shares = found["strategy"]["shares"]
    assert shares[0][0] == 0
    assert all(sum(parts) == 100 for _, parts in shares)
    seen = [w["examples"] for w in found["partition"]["workers"]]
    assert sum(seen) == found["partition"]["seen"] == 2000
    assert [w["examples"] for w in found["epochs"][-1]["workers"]] == seen
    assert found["partition"]["epoch"] == 2
    if WORLD.size > 1:
        assert len(shares) > 1


def test_a_resumed_run_goes_on_with_its_shares_and_the_same_bits(folder, measured):
    """Given the same measurements; real ones differ from run to run, and so does rounding."""
    given = {**BALANCED, "checkpoint_every": "10steps"}
    whole = checkpointed(folder, **given)
    found = at(folder, 40)  # in the middle of a window
    resumed = checkpointed(folder, checkpoint=found, **given)
    assert resumed.step == whole.step
    assert resumed.hook(Balance).history == whole.hook(Balance).history
    assert torch.equal(resumed.params, whole.params)
    assert resumed.facts["shares"] == whole.facts["shares"]


def test_another_number_of_workers_starts_with_equal_shares(folder, measured):
    given = {**BALANCED, "checkpoint_every": "10steps", "dtype": "float64", "model": smooth}
    whole = checkpointed(folder, **given)
    found = at(folder, 40)
    if WORLD.rank == 0:
        resumed = checkpointed(folder, MPI.COMM_SELF, checkpoint=found, **given)
        assert distance(resumed.params, whole.params) < 1e-10
        if WORLD.size > 1:
            assert resumed.hook(Balance).history == [[40, [100]]]
    WORLD.Barrier()
    shutil.rmtree(Path(folder) / f"rank-{WORLD.rank}", ignore_errors=True)
