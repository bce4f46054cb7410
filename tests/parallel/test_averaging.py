"""Averaging weights: each step it is sync, alone sequential; the record says what it did."""

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
from manyhands.comm.mpi import MPICommunicator
from manyhands.launch.status_board import Board
from manyhands.training.process import measurements
from manyhands.worker import evaluation
from manyhands.worker.checkpoint import save_or_stop

PLAIN = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "dtype": "float64"}


@pytest.mark.parametrize("partition", ["balanced", "random-partition", "by-label"])
@pytest.mark.parametrize("batch_size", [128, 127, 7])
def test_averaging_every_step_is_sync(blobs, tmp_path, partition, batch_size):
    given = {**PLAIN, "max_steps": 20, "batch_size": batch_size, "partition": partition}
    sync = train(smooth, blobs, WORLD, tmp_path, strategy="sync", **given)
    averaging = train(smooth, blobs, WORLD, tmp_path, strategy="averaging", period=1, **given)
    assert distance(sync.params, averaging.params) < 1e-10


def test_the_default_rate_is_divided_by_the_workers(blobs, tmp_path):
    given = {"strategy": "averaging", "max_steps": 20, "dtype": "float64"}
    default = train(smooth, blobs, WORLD, tmp_path, **given)
    divided = train(smooth, blobs, WORLD, tmp_path, lr=mh.SGD().lr / WORLD.size, **given)
    assert distance(default.params, divided.params) < 1e-10
    assert default.lr == pytest.approx(divided.lr)


def test_averages_are_weighted_by_the_examples_seen(blobs, tmp_path):
    size = WORLD.size
    shares = tuple(np.arange(1, size + 1) / np.arange(1, size + 1).sum())
    given = {**PLAIN, "max_steps": 20, "batch_size": 64, "shares": shares}
    sync = train(
        smooth, blobs, WORLD, tmp_path, strategy="sync", partition="random-partition", **given
    )
    averaging = train(smooth, blobs, WORLD, tmp_path, strategy="averaging", period=1, **given)
    assert distance(sync.params, averaging.params) < 1e-10


def test_who_waits_for_the_others_answer_whether_to_stop_notes_it(blobs, tmp_path, monkeypatch):
    """Else it would be taken for one that hangs."""
    noted = []
    monkeypatch.setattr(Board, "note", lambda _, rank, step, what: noted.append((step, what)))
    monkeypatch.setattr(save_or_stop, "steps_between", lambda pace: 4)
    train(smooth, blobs, WORLD, tmp_path, strategy="averaging", **PLAIN, max_steps=9)
    assert [step for step, what in noted if what == "agree"] == [1, 2, 4, 8]


def test_nobody_waits_for_the_others_to_be_asked(blobs, tmp_path, monkeypatch):
    """The last worker does not begin its third step before the first has ended its seventh."""
    first, last = WORLD.rank == 0, WORLD.rank == WORLD.size - 1
    sign = Path(WORLD.bcast(str(tmp_path))) / "seven"
    step = mh.Averaging.step

    def stepped(self, worker, batch):
        if last and not first and worker.step == 2:
            deadline = time.monotonic() + 20
            while not sign.exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            assert sign.exists()
        step(self, worker, batch)
        if first and worker.step == 6:
            sign.touch()

    monkeypatch.setattr(mh.Averaging, "step", stepped)
    monkeypatch.setattr(save_or_stop, "steps_between", lambda pace: 4)
    train(smooth, blobs, WORLD, tmp_path, strategy="averaging", **PLAIN, max_steps=9)


def test_who_waits_at_a_question_is_seen_waiting(blobs, tmp_path, monkeypatch):
    """Workers that average only at the end, after nine steps, meet in nothing else.

    At step 8 they wait for the answer to the question of step 4.
    """
    if WORLD.size == 1:
        pytest.skip("nobody to wait for")
    monkeypatch.setattr(save_or_stop, "steps_between", lambda pace: 4)
    assert MPICommunicator(WORLD).begin_maximum(np.array([WORLD.rank])).result() == WORLD.size - 1
    slow = f"{WORLD.size - 1}:200:sleep"  # longer than anybody waits for a core
    worker = train(
        smooth, blobs, WORLD, tmp_path, strategy="averaging", **PLAIN, max_steps=9, slow=slow
    )
    waited = [row["wait"] for row in measurements.step_rows(worker)]
    first = worker.comm.gather(waited)[0]
    assert not any(first[2:3] + first[4:7])
    assert first[7] > first[0]  # at step 1 they only ask


@pytest.mark.parametrize("period", [None, 1, 3])
def test_one_worker_is_sequential_bit_for_bit(blobs, tmp_path, period):
    given = {"max_steps": 20, "batch_size": 32, "partition": "random-partition"}
    one = train(with_dropout, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **given)
    strategy = mh.Averaging(period=period)
    other = train(with_dropout, blobs, MPI.COMM_SELF, tmp_path, strategy=strategy, **given)
    assert torch.equal(one.params, other.params)


@pytest.mark.parametrize("period", [None, 4])
def test_workers_train_alone_between_averagings(blobs, tmp_path, period):
    """Against the algorithm as printed, on all workers' shards in one process."""
    size, steps, lr = WORLD.size, 10, 0.1
    reference = Reference(blobs, size, batch_size=50, partition="random-partition")
    w = [reference.start.clone() for _ in range(size)]
    seen = [0] * size
    shares = [reference.shares(k, steps) for k in range(size)]
    for t in range(1, steps + 1):
        for k in range(size):
            w[k] = w[k] - lr * reference.gradient(w[k], shares[k][t - 1])
            seen[k] += len(shares[k][t - 1].indices)
        if t == steps or (period and t % period == 0):
            mean = sum(n / sum(seen) * w_k for n, w_k in zip(seen, w, strict=True))
            w, seen = [mean.clone() for _ in range(size)], [0] * size
    given = {**PLAIN, "lr": lr, "max_steps": steps, "batch_size": 50}
    worker = train(smooth, blobs, WORLD, tmp_path, strategy=mh.Averaging(period=period), **given)
    assert distance(worker.params, w[0]) < 1e-10


def test_all_replicas_end_with_the_same_bits_and_the_same_seed_gives_them_again(blobs, tmp_path):
    given = {"epochs": 1, "batch_size": 64, "strategy": "averaging"}
    first = train(with_dropout, blobs, WORLD, tmp_path, **given)
    again = train(with_dropout, blobs, WORLD, tmp_path, **given)
    assert same_everywhere(first, first.params)
    assert torch.equal(first.config.strategy.consensus(first), first.params)
    assert torch.equal(first.params, again.params)


def test_consensus_changes_nobody(blobs, tmp_path):
    worker = train(smooth, blobs, WORLD, tmp_path, strategy="averaging", max_steps=5)
    with torch.no_grad():
        worker.params.add_(worker.rank + 1.0)
    worker.state.own, worker.state.total = 1, WORLD.size
    before = worker.params.clone()
    mean = worker.config.strategy.consensus(worker)
    assert torch.equal(worker.params, before)
    assert same_everywhere(worker, mean)
    offset = (WORLD.size + 1) / 2
    assert distance(mean, before - (worker.rank + 1.0) + offset) < 1e-5


@pytest.mark.parametrize(("fate", "alike"), [("keep", False), ("average", True)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_moments_are_kept_or_averaged(blobs, tmp_path, optimizer, fate, alike):
    strategy = mh.Averaging(period=5, average_optimizer=fate)
    worker = train(
        smooth, blobs, WORLD, tmp_path, strategy=strategy, max_steps=10, optimizer=optimizer
    )
    name = {"sgd": "momentum_buffer", "adam": "exp_avg"}[optimizer]
    (state,) = worker.optimizer.state.values()
    assert same_everywhere(worker, state[name]) == (alike or WORLD.size == 1)


def test_moments_are_reset(blobs, tmp_path):
    strategy = mh.Averaging(period=5, average_optimizer="reset")
    worker = train(smooth, blobs, WORLD, tmp_path, strategy=strategy, max_steps=10)
    assert not worker.optimizer.state


@pytest.mark.parametrize(
    ("period", "unit", "steps", "averagings"),
    [(None, "steps", 12, 1), (5, "steps", 12, 3), (6, "steps", 12, 2), (1, "epochs", None, 2)],
)
def test_one_all_reduce_per_period_and_one_at_the_end(
    blobs, tmp_path, period, unit, steps, averagings
):
    strategy = mh.Averaging(period=period, period_unit=unit, allreduce="naive")
    worker = train(
        smooth, blobs, WORLD, tmp_path, strategy=strategy, max_steps=steps, epochs=2, batch_size=250
    )
    costs = worker.comm.meter.costs
    if WORLD.size == 1:
        assert not costs
        return
    assert list(costs) == ["allreduce naive"]
    assert costs["allreduce naive"].calls == averagings
    assert costs["allreduce naive"].payload == averagings * worker.replica.dim * 4


def test_every_step_has_all_its_times(blobs, tmp_path):
    worker = train(smooth, blobs, WORLD, tmp_path, strategy="averaging", period=4, max_steps=10)
    clock = worker.clock
    times = np.array([clock.begun, clock.computed, clock.entered, clock.exchanged, clock.updated])
    assert times.shape == (5, 10)
    assert (np.diff(times, axis=0) >= 0).all()
    exchanged = times[3] > times[2]
    assert exchanged[[3, 7, 9]].all()
    # After steps 1 and 2 they also agree on whether to stop.
    assert set(np.flatnonzero(exchanged)) <= {0, 1, 3, 7, 9}


def test_a_target_stops_all_workers_and_the_average_is_what_is_left(blobs, tmp_path):
    worker = train(
        smooth, blobs, WORLD, tmp_path, strategy="averaging", epochs=50, target_accuracy=0.5
    )
    assert worker.training.stopped == "target_accuracy"
    assert len(worker.training.epochs) < 50
    assert same_everywhere(worker, worker.params)


def test_the_record_holds_each_worker_s_own_accuracy_beside_the_average_s(blobs, tmp_path):
    run = record(smooth, blobs, tmp_path, strategy="averaging", partition="by-label", epochs=1)
    facts, result = run["strategy"], run["result"]
    assert len(facts["own_accuracy"]) == len(facts["own_loss"]) == WORLD.size
    assert all(0 <= accuracy <= 1 for accuracy in facts["own_accuracy"])
    assert facts["average_accuracy"] == result["accuracy"]
    assert facts["average_loss"] == result["loss"]
    if WORLD.size == 1:
        assert facts["own_accuracy"] == [result["accuracy"]]
    else:  # a worker that has seen some of the classes only knows no others
        assert min(facts["own_accuracy"]) < facts["average_accuracy"]


def test_an_accuracy_that_is_recorded_is_that_of_the_model_that_is_saved(blobs, tmp_path):
    worker = train(smooth, blobs, WORLD, tmp_path, strategy="averaging", epochs=2)
    loss, metrics = evaluation.evaluate(worker, worker.params, worker.data.test)
    last = worker.training.epochs[-1]
    assert (loss, metrics) == (last.test_loss, last.test_metrics)
    assert metrics["accuracy"] == worker.facts["average_accuracy"]
