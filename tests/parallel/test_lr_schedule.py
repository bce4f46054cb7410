"""A learning rate that changes, and gradients cut to a length: the equalities still hold."""

import pytest
import torch
from mpi4py import MPI
from training import UP_TO_THREE, WORLD, distance, smooth, train, with_dropout

import manyhands as mh

pytestmark = UP_TO_THREE
CHANGING = {"schedule": "cosine", "warmup": 0.2, "clip_norm": 0.3, "max_steps": 30}
GIVEN = {**CHANGING, "lr": 0.5, "momentum": 0.9, "batch_size": 61, "dtype": "float64"}


def test_many_workers_end_where_one_does(blobs, tmp_path):
    one = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **GIVEN)
    many = train(smooth, blobs, WORLD, tmp_path, strategy="sync", **GIVEN)
    assert distance(one.params, many.params) < 1e-10


@pytest.mark.parametrize("option", ["schedule", "warmup", "clip_norm"])
def test_each_option_matters(blobs, tmp_path, option):
    whole = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **GIVEN)
    given = {name: value for name, value in GIVEN.items() if name != option}
    without = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    assert distance(whole.params, without.params) > 1e-3


@pytest.mark.parametrize("strategy", [mh.Averaging(), mh.Averaging(period=3), mh.Gossip()])
def test_alone_every_strategy_is_sequential(blobs, tmp_path, strategy):
    given = {**GIVEN, "partition": "balanced"}
    one = train(with_dropout, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    if isinstance(strategy, mh.Gossip):
        given["workers"] = 1
    other = train(with_dropout, blobs, MPI.COMM_SELF, tmp_path, strategy=strategy, **given)
    assert torch.equal(one.params, other.params)


@pytest.mark.skipif(WORLD.size < 3, reason="two workers and a master")
@pytest.mark.parametrize("shares", [(0.1, 0.9), (0.9, 0.1)])
def test_the_rate_of_a_server_ends_with_its_last_push_whoever_makes_it(blobs, tmp_path, shares):
    given = {**GIVEN, "partition": "random-partition", "shares": shares, "schedule": "linear"}
    given |= {"max_steps": None, "epochs": 1, "warmup": 0.0, "workers": 2}
    group = WORLD.Split(WORLD.rank < 3)
    if WORLD.rank < 3:
        worker = train(smooth, blobs, group, tmp_path, strategy=mh.Server(masters=1), **given)
        if worker.role == "master":
            (rate,) = {group["lr"] for group in worker.optimizer.param_groups}
            updates = sum(worker.computation.planned)
            assert max(worker.computation.planned) > 2 * min(worker.computation.planned)
            assert rate == pytest.approx(0.5 / updates)  # of the last of them
    group.Free()


@pytest.mark.skipif(WORLD.size < 2, reason="a server needs a master beside its worker")
def test_a_server_with_one_worker_is_sequential(blobs, tmp_path):
    given = {**GIVEN, "partition": "balanced"}
    one = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    group = WORLD.Split(WORLD.rank < 2)
    if WORLD.rank < 2:
        served = train(
            smooth, blobs, group, tmp_path, strategy=mh.Server(masters=1), **given, workers=1
        )
        assert distance(one.params, served.params) < 1e-12
    group.Free()
