"""Gossip: D-PSGD as printed, sync on the complete graph, and what it costs and records."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from training import (
    WORLD,
    Reference,
    distance,
    record,
    same_everywhere,
    smooth,
    train,
    with_dropout,
)

import manyhands as mh
from manyhands.model.replica import Loss, Replica
from manyhands.strategies.gossip import ad_psgd
from manyhands.strategies.gossip.topology import graph, mixing
from manyhands.worker import evaluation

PLAIN = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "dtype": "float64"}
TOPOLOGIES = ["ring", "exponential", "complete"]
if WORLD.size % 2 == 0 or WORLD.size == 1:
    TOPOLOGIES.append("pairs")


@pytest.mark.parametrize("partition", ["balanced", "random-partition", "by-label"])
@pytest.mark.parametrize("batch_size", [128, 127, 7])
def test_on_the_complete_graph_adapting_then_combining_is_sync(
    blobs, tmp_path, partition, batch_size
):
    given = {**PLAIN, "max_steps": 20, "batch_size": batch_size, "partition": partition}
    sync = train(smooth, blobs, WORLD, tmp_path, strategy="sync", **given)
    averaging = train(smooth, blobs, WORLD, tmp_path, strategy="averaging", period=1, **given)
    gossip = train(smooth, blobs, WORLD, tmp_path, strategy="gossip", topology="complete", **given)
    assert distance(sync.params, gossip.params) < 1e-10
    assert distance(averaging.params, gossip.params) < 1e-10


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("topology", ["ring", "exponential", "complete", "pairs"])
def test_one_worker_is_sequential_bit_for_bit(blobs, tmp_path, topology, overlap):
    given = {"max_steps": 20, "batch_size": 32}
    one = train(with_dropout, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    strategy = mh.Gossip(topology=topology, overlap=overlap)
    other = train(with_dropout, blobs, MPI.COMM_SELF, tmp_path, strategy=strategy, **given)
    assert torch.equal(one.params, other.params)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_step_is_the_one_printed(blobs, tmp_path, topology, overlap):
    """Against the algorithm on all workers in one process: the average and how far they are."""
    size, steps, lr = WORLD.size, 12, 0.1
    reference = Reference(blobs, size, batch_size=53, partition="balanced")
    x = torch.stack([reference.start] * size)
    shares = [reference.shares(i, steps) for i in range(size)]
    for t in range(steps):
        g = torch.stack(
            [
                size * len(s[t].indices) / s[t].total * reference.gradient(x[i], s[t])
                for i, s in enumerate(shares)
            ]
        )
        w = torch.from_numpy(mixing(graph(topology, size, seed=0, step=t)))
        x = w @ x - lr * g if overlap else w @ (x - lr * g)
    mean = x.mean(0)
    spread = float((x - mean).square().sum(1).mean().sqrt())
    strategy = mh.Gossip(topology=topology, overlap=overlap)
    given = {**PLAIN, "lr": lr, "max_steps": steps, "batch_size": 53}
    worker = train(smooth, blobs, WORLD, tmp_path, strategy=strategy, **given)
    assert distance(worker.params, mean) < 1e-10
    ((step, recorded),) = worker.facts["consensus_distance"]
    assert step == steps
    assert recorded == pytest.approx(spread, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_all_replicas_end_with_the_same_bits_and_the_same_seed_gives_them_again(
    blobs, tmp_path, topology, overlap
):
    strategy = mh.Gossip(topology=topology, overlap=overlap)
    given = {"epochs": 1, "batch_size": 64, "strategy": strategy, "optimizer": "adam"}
    first = train(with_dropout, blobs, WORLD, tmp_path, **given)
    again = train(with_dropout, blobs, WORLD, tmp_path, **given)
    assert same_everywhere(first, first.params)
    assert torch.equal(first.config.strategy.consensus(first), first.params)
    assert torch.equal(first.params, again.params)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_messages_and_bytes_are_those_stated(blobs, tmp_path, topology, overlap):
    strategy = mh.Gossip(topology=topology, overlap=overlap)
    steps, size = 9, WORLD.size
    worker = train(smooth, blobs, WORLD, tmp_path, strategy=strategy, max_steps=steps)
    neighbours = {
        "ring": min(2, size - 1),
        "exponential": (0, 1, 2, 3, 4)[size - 1],
        "complete": size - 1,
        "pairs": min(1, size - 1),
    }[topology]
    cost = worker.comm.meter.costs["exchange"]
    assert (cost.calls, cost.messages) == (steps, steps * neighbours)
    assert cost.bytes == steps * neighbours * worker.replica.dim * 4
    others = {name: c.calls for name, c in worker.comm.meter.costs.items() if name != "exchange"}
    assert others == ({"allreduce auto": 1} if size > 1 else {})


def test_every_step_has_all_its_times(blobs, tmp_path):
    for overlap in (False, True):
        strategy = mh.Gossip(overlap=overlap)
        clock = train(smooth, blobs, WORLD, tmp_path, strategy=strategy, max_steps=10).clock
        times = [clock.begun, clock.computed, clock.entered, clock.exchanged, clock.updated]
        assert np.shape(times) == (5, 10)
        assert (np.diff(times, axis=0) >= 0).all()


def test_the_record_holds_the_distance_at_every_evaluation(blobs, tmp_path):
    run = record(smooth, blobs, tmp_path, strategy="gossip", epochs=3, momentum=0.0)
    steps, distances = zip(*run["strategy"]["consensus_distance"], strict=True)
    assert list(steps) == [row["steps"] for row in run["epochs"]]
    assert all(np.isfinite(distances))
    # A ring of up to three is complete: the workers agree after every step.
    assert all(value > 1e-3 if WORLD.size > 3 else value < 1e-5 for value in distances)
    assert run["result"]["accuracy"] > 0.5


def test_a_target_stops_all_workers_and_the_average_is_what_is_left(blobs, tmp_path):
    worker = train(
        smooth, blobs, WORLD, tmp_path, strategy="gossip", epochs=50, target_accuracy=0.5
    )
    assert worker.training.stopped == "target_accuracy"
    assert len(worker.training.epochs) < 50
    assert same_everywhere(worker, worker.params)
    assert (
        evaluation.evaluate(worker, worker.params, worker.data.test)[1]
        == worker.training.epochs[-1].test_metrics
    )


def test_neighbours_may_be_a_step_apart(blobs, tmp_path):
    """A slow worker holds up its neighbours only; their messages never get mixed up."""
    worker = train(smooth, blobs, WORLD, tmp_path, strategy="gossip", max_steps=1)
    vector = torch.empty(70_000)
    received = {j: torch.empty_like(vector) for j in graph("ring", WORLD.size)[WORLD.rank]}
    for step in range(20):
        if step % 5 == WORLD.rank:
            time.sleep(0.01)
        vector.fill_(100 * step + WORLD.rank)
        worker.comm.exchange(vector, received)()
        assert all(bool((theirs == 100 * step + j).all()) for j, theirs in received.items())


def test_asynchronously_one_worker_is_sequential_bit_for_bit(blobs, tmp_path):
    given = {"max_steps": 20, "batch_size": 32, "partition": "balanced"}
    one = train(with_dropout, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    strategy = mh.Gossip(asynchronous=True)
    other = train(with_dropout, blobs, MPI.COMM_SELF, tmp_path, strategy=strategy, **given)
    assert torch.equal(one.params, other.params)


@pytest.mark.parametrize("topology", ["ring", "complete"])
def test_averages_of_two_keep_the_mean_and_bring_all_together(
    blobs, tmp_path, topology, monkeypatch
):
    """Every worker begins elsewhere and its gradients are nothing: what is left is averaging."""

    def nothing(self, x, y, weight, _early):
        time.sleep(0.001)
        self.grad.zero_()
        return Loss(0.0, 0, len(x))

    monkeypatch.setattr(Replica, "gradient", nothing)
    begun = []
    run = ad_psgd.train

    def scattered(worker, graph):
        worker.params.copy_(torch.randn(len(worker.params), generator=seeded(worker.rank)))
        begun.append(worker.params.clone())
        return run(worker, graph)

    monkeypatch.setattr(ad_psgd, "train", scattered)
    strategy = mh.Gossip(topology=topology, asynchronous=True)
    worker = train(smooth, blobs, WORLD, tmp_path, strategy=strategy, batch_size=20, **PLAIN)
    mean = torch.tensor(worker.comm.gather(begun[0].tolist()), dtype=torch.float64).mean(0)
    assert distance(worker.params, mean) < 1e-12
    apart = float((begun[0] - mean).square().sum()) ** 0.5
    assert worker.facts["consensus_distance"][-1][1] < 0.5 * max(worker.comm.gather(apart)) or (
        WORLD.size == 1
    )


def seeded(rank):
    return torch.Generator().manual_seed(rank)


def test_asynchronously_all_examples_are_seen_and_every_question_is_answered(blobs, folder):
    found = record(smooth, blobs, folder, strategy="gossip", asynchronous=True, epochs=3,
                   batch_size=20 * WORLD.size, lr=0.1)  # fmt: skip
    assert found["result"]["examples"] == 3 * 2000
    assert found["result"]["accuracy"] > 0.8
    facts = found["strategy"]
    assert sum(facts["asked"]) == sum(facts["answered"])
    steps = [w["steps"] for w in found["workers"]]
    assert facts["asked"] == [
        0 if rank % 2 or WORLD.size == 1 else n for rank, n in enumerate(steps)
    ]
    assert facts["answered"][::2] == [0] * len(steps[::2])
    if WORLD.size == 1:
        assert facts["staleness"]["histogram"] == {"0": steps[0]}
    sent = [w["operations"].get("average", {"messages": 0})["messages"] for w in found["workers"]]
    assert sent == [a + b for a, b in zip(facts["asked"], facts["answered"], strict=True)]


@pytest.mark.skipif(WORLD.size < 2, reason="needs somebody who asks")
def test_asynchronously_nobody_waits_for_a_gradient_of_another(blobs, folder, monkeypatch):
    """Worker 1 is in its first gradient until all who may ask it are done: they are answered.

    Worker 0 begins when worker 1 has: all its averages but the first make that gradient stale.
    """
    gradient, waited, begun = Replica.gradient, [], Path(folder) / "begun"

    def slow(self, x, y, weight, early):
        if not waited and WORLD.rank == 1:
            begun.touch()
            for thread in threading.enumerate():
                if thread.name == "responder":
                    waited.append(thread)
                    thread.join()
        while WORLD.rank == 0 and not begun.exists():
            time.sleep(0.001)
        return gradient(self, x, y, weight, early)

    monkeypatch.setattr(Replica, "gradient", slow)
    found = record(smooth, blobs, folder, strategy="gossip", asynchronous=True, epochs=1,
                   batch_size=50 * WORLD.size, lr=0.1)  # fmt: skip
    facts, steps = found["strategy"], [w["steps"] for w in found["workers"]]
    assert len(waited) == (WORLD.rank == 1)
    assert found["result"]["examples"] == 2000
    only = WORLD.size < 4  # then worker 0 has nobody else to ask
    assert facts["answered"][1] >= (steps[0] if only else 1)
    if only:
        assert steps[0] - 1 <= facts["staleness"]["max"] <= facts["answered"][1]
    histogram = facts["staleness"]["histogram"]
    assert sum(histogram.values()) == sum(steps)
    assert histogram["1"] >= sum(steps[::2])  # who asks averages once within each gradient


def test_asynchronously_the_target_stops_all(blobs, folder):
    found = record(smooth, blobs, folder, strategy="gossip", asynchronous=True, epochs=50,
                   batch_size=20 * WORLD.size, lr=0.1, target_accuracy=0.5)  # fmt: skip
    assert found["result"]["stopped"] == "target_accuracy"
    assert found["result"]["accuracy"] >= 0.5
    assert max(w["steps"] for w in found["workers"]) < 50 * 100
