"""Steps are counted one way in every record, and a run that reaches its target stops there."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from training import WORLD, record, smooth

import manyhands as mh
from manyhands.worker import evaluation
from manyhands.worker.worker import Worker

SIZE = WORLD.size
MANY = pytest.mark.skipif(SIZE < 2, reason="there is nobody but worker 0")
WAYS = {
    "sequential": ({"strategy": "sequential"}, 1),
    "sync": ({"strategy": "sync"}, SIZE),
    "averaging": ({"strategy": mh.Averaging(period=3)}, SIZE),
    "psgd": ({"strategy": "averaging"}, SIZE),
    "gossip": ({"strategy": "gossip"}, SIZE),
    "asynchronous gossip": ({"strategy": mh.Gossip(asynchronous=True)}, SIZE),
    "pipeline": ({"strategy": mh.Pipeline(stages=SIZE, cut="parameters")}, 1),
    "tensor": ({"strategy": mh.TensorParallel(slices=SIZE)}, 1),
    "server": ({"strategy": "server"}, SIZE - 1),
    "server, bound 0": ({"strategy": mh.Server(staleness=0)}, SIZE - 1),
    "server, bound 2": ({"strategy": mh.Server(staleness=2)}, SIZE - 1),
    "server, prefetch": ({"strategy": mh.Server(prefetch=1)}, SIZE - 1),
    "server, two masters": ({"strategy": mh.Server(masters=2)}, SIZE - 2),
}
APART = ["asynchronous gossip", *(name for name in WAYS if name.startswith("server"))]


def trained(name, blobs, folder, **given):
    strategy, workers = WAYS[name]
    most = {"sequential": 1, "pipeline": 2}.get(name, SIZE)  # the model has two layers
    if workers < 1 or most < SIZE:
        pytest.skip(f"{name} does not run with {SIZE} processes")
    batch = {"batch_size": 20, "lr": 0.05, "momentum": 0.0}
    return record(smooth, blobs, folder, **{**batch, **strategy, "workers": workers, **given})


def by_worker(found):
    return [row["steps"] for row in found["workers"] if row["role"] == "worker"]


@pytest.mark.parametrize("stop", ["epochs", "max_steps", "target_accuracy"])
@pytest.mark.parametrize("name", WAYS)
def test_the_last_epoch_has_the_steps_of_the_result(blobs, folder, name, stop):
    given = {"max_steps": 7} if stop == "max_steps" else {"epochs": 3}
    if stop == "target_accuracy":
        given = {"epochs": 30, "target_accuracy": 0.5}
    found = trained(name, blobs, folder, **given)
    result, steps = found["result"], [row["steps"] for row in found["epochs"]]
    assert result["stopped"] == stop
    assert (result["steps"], result["examples"]) == (steps[-1], found["epochs"][-1]["examples"])
    assert steps == sorted(steps)
    assert 0 < result["steps"] <= max(by_worker(found))
    if stop == "max_steps":
        assert result["steps"] == 7
    if stop == "epochs":
        assert result["steps"] == sum(by_worker(found)) // len(by_worker(found))
    if stop == "target_accuracy":
        assert result["seconds_to_target"] == found["epochs"][-1]["seconds"]


@pytest.mark.parametrize("name", WAYS)
def test_the_file_of_steps_numbers_each_workers_own(blobs, folder, name):
    found = trained(name, blobs, folder, epochs=2)
    lines = (Path(WORLD.bcast(str(folder))) / "steps.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    counted = Counter(row["rank"] for row in rows)
    last = {rank: max(r["step"] for r in rows if r["rank"] == rank) for rank in counted}
    assert last == dict(counted)
    assert [last[rank] for rank in range(len(by_worker(found)))] == by_worker(found)


@MANY
@pytest.mark.parametrize("name", APART)
def test_nobody_trains_while_worker_0_evaluates(blobs, folder, name, monkeypatch):
    """Others begin no step once the message has come; half of the evaluation is time enough."""
    evaluate, end_step, begun, ended = evaluation.evaluate_epoch, Worker.end_step, [], []

    def slow(worker, epoch, params, *, alone=False, **more):
        if alone:
            begun.append(time.monotonic())
            time.sleep(0.4)
            ended.append(time.monotonic())
        evaluate(worker, epoch, params, alone=alone, **more)

    steps = []

    def noted(worker, epoch):
        end_step(worker, epoch)
        steps.append(time.monotonic())

    monkeypatch.setattr(evaluation, "evaluate_epoch", slow)
    monkeypatch.setattr(Worker, "end_step", noted)
    found = trained(name, blobs, folder, epochs=40, target_accuracy=0.5)
    if len(by_worker(found)) == 1:
        return
    waits = WORLD.bcast(list(zip(begun, ended, strict=True)))
    for start, stop in waits:
        assert sum((start + stop) / 2 < step < stop for step in steps) <= 1
    # What is said of the run is what is behind the copy that reached the target.
    result, batch = found["result"], 20
    assert result["examples"] <= sum(row["examples"] for row in found["workers"])
    if name.startswith("server"):
        per_worker = result["examples"] / batch / len(by_worker(found))
        assert result["steps"] == pytest.approx(per_worker, abs=1)
    # The others' clocks stand still meanwhile, as worker 0's does: from the end of the step in
    # which the message came, give or take half (a busy machine delays the message).
    idle = sum(stop - max([start, *(s for s in steps if s < stop)]) for start, stop in waits)
    idle_by_rank = WORLD.allgather(idle)
    for row in found["workers"]:
        if row["role"] == "worker":
            assert row["evaluation"] > 0.5 * idle_by_rank[row["rank"]]
