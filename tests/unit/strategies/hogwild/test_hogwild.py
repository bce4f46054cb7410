"""Hogwild in one process: one worker is sequential, whatever the variant; what is refused."""

import threading
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.comm.memory import MemoryGroup
from manyhands.config.options import configure
from manyhands.data import store
from manyhands.errors import ConfigError, DivergedError, StoppedError
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.training.job import Job
from manyhands.training.process import build, worker_main
from manyhands.training.process import record as summary
from manyhands.worker import evaluation
from manyhands.worker.checkpoint.folder_layout import forget_after, newest

OPTIMIZERS = {
    "defaults": {},
    "plain": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0},
    "momentum": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "another": {"optimizer": lambda params: torch.optim.Adagrad(params, lr=0.05)},
}


def with_dropout():
    return nn.Sequential(nn.Linear(20, 64), nn.Dropout(0.5), nn.Linear(64, 4))


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    return store("blobs", tmp_path_factory.mktemp("data") / "blobs")


def nobody(message):
    raise AssertionError(message)


def group(folder, rank=0, ends=(), size=1):
    (folder / "lock").touch()
    return MemoryGroup(rank, list(ends), size, folder / "lock")


@pytest.fixture
def fit(blobs, tmp_path):
    """Return a function that trains with one worker and returns it and the record."""

    def train(checkpoint=None, **given):
        config = configure({"kernels": "default", "epochs": 1, "workers": 1, **given})
        Board(tmp_path / BOARD_FILE, 1, create=True)
        job = Job(
            config=config, model=with_dropout, loss=None, data=str(blobs), output=str(tmp_path),
            name="test", command="test", launched=0.0, threads=1,
            checkpoint=checkpoint and str(checkpoint.folder),
        )  # fmt: skip
        worker, kernels = build.build_worker(job, group(tmp_path), tmp_path)
        process = worker_main.train(worker, Path(), worker_main.wait_until_ready(worker))
        return worker, summary.write_record(job, worker, kernels, process)

    return train


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("variant", [{}, {"lock": True}], ids=["free", "locked"])
@pytest.mark.parametrize("judged", [{}, {"target_accuracy": 1.0}], ids=["", "judged"])
def test_one_worker_is_sequential_bit_for_bit(fit, optimizer, variant, judged):
    given = {"batch_size": 50, "partition": "balanced", **judged, **OPTIMIZERS[optimizer]}
    alone, _ = fit(strategy="sequential", **given)
    hogwild, record = fit(strategy=mh.Hogwild(**variant), **given)
    assert torch.equal(hogwild.params, alone.params)
    assert record["strategy"]["staleness"] == {"histogram": {"0": 40}, "mean": 0.0, "max": 0}


@pytest.mark.parametrize("aim", [{}, {"validation": 0.2, "patience": 4}], ids=["", "patience"])
def test_fewer_evaluations_leave_training_as_it_is(fit, aim):
    given = {"strategy": "hogwild", "batch_size": 50, "epochs": 5, **aim}
    always, _ = fit(**given)
    seldom, record = fit(**given, evaluate_every=2)
    assert torch.equal(seldom.params, always.params)
    rows = record["epochs"]
    assert [row["epoch"] for row in rows if row["test_loss"] is not None] == [2, 4, 5]
    assert all((row["validation_loss"] is not None) == bool(aim) for row in rows)


@pytest.mark.parametrize("aim", [{}, {"target_accuracy": 1.0}], ids=["", "judged"])
def test_evaluations_within_epochs_leave_training_as_it_is(fit, aim):
    given = {"strategy": "hogwild", "batch_size": 50, "epochs": 2, "lr": 1e-4, **aim}
    plain, before = fit(**given)
    often, record = fit(**given, evaluate_every="0.25epochs")
    assert torch.equal(often.params, plain.params)
    assert before["evaluations"] == []
    rows = record["evaluations"]
    assert [row["epoch"] for row in rows] == [0.25, 0.5, 0.75, 1.25, 1.5, 1.75]
    assert [row["steps"] for row in rows] == [10, 20, 30, 50, 60, 70]
    assert [row["examples"] for row in rows] == [50 * row["steps"] for row in rows]
    losses = [row["test_loss"] for row in rows]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == len(losses)


def test_a_target_is_reached_within_an_epoch(fit):
    given = {"strategy": "hogwild", "batch_size": 50, "epochs": 2}
    worker, record = fit(**given, target_accuracy=0.01, evaluate_every="7steps")
    assert record["result"]["stopped"] == "target_accuracy"
    assert worker.step == record["result"]["steps"] == 7
    assert record["result"]["seconds_to_target"] == record["epochs"][0]["seconds"]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_shared_state_of_one_worker_is_its_own(fit, optimizer):
    given = {"batch_size": 50, **OPTIMIZERS[optimizer]}
    own, _ = fit(strategy="hogwild", **given)
    shared, _ = fit(strategy=mh.Hogwild(shared_state=True), **given)
    assert torch.equal(own.params, shared.params)
    tensors = [v for state in shared.optimizer.state.values() for v in state.values()]
    assert all(v.is_shared() for v in tensors)


@pytest.mark.parametrize("optimizer", ["plain", "another"])
def test_state_that_cannot_be_shared_is_refused(fit, optimizer):
    with pytest.raises(ConfigError, match="no state that can be shared"):
        fit(strategy=mh.Hogwild(shared_state=True), **OPTIMIZERS[optimizer])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("variant", [{}, {"lock": True}, {"shared_state": True}], ids=str)
def test_going_on_is_never_having_stopped(fit, tmp_path, optimizer, variant):
    """Bit for bit, with one worker: at the end of an epoch, inside one, after the last step."""
    if "shared_state" in variant and optimizer in ("plain", "another"):
        pytest.skip("nothing to share")
    given = {"batch_size": 50, "epochs": 2, "checkpoint_every": "20steps", "keep": 9}
    given |= {"strategy": mh.Hogwild(**variant), **OPTIMIZERS[optimizer]}
    whole, record = fit(**given)
    for step in (80, 60, 40):
        forget_after(tmp_path, step)
        found = newest(tmp_path, nobody)
        assert found.step == step
        resumed, again = fit(checkpoint=found, **given)
        assert torch.equal(resumed.params, whole.params)
        assert resumed.training.losses == whole.training.losses
        assert again["strategy"] == record["strategy"]
        accuracies = [epoch["test_accuracy"] for epoch in record["epochs"]]
        assert [epoch["test_accuracy"] for epoch in again["epochs"]] == accuracies


def test_a_signal_writes_a_last_checkpoint(fit, tmp_path, monkeypatch):
    given = {"batch_size": 50, "strategy": "hogwild", "checkpoint_every": "1000steps"}
    whole, _ = fit(**given)
    monkeypatch.setattr(Board, "stop_signal", lambda board: 15 * (board.read()[0].step >= 8))
    with pytest.raises(StoppedError, match="resume from it with --resume") as stopped:
        fit(**given)
    assert stopped.value.exit_code == 143
    monkeypatch.undo()
    resumed, _ = fit(checkpoint=newest(tmp_path, nobody), **given)
    assert torch.equal(resumed.params, whole.params)


def test_the_model_lives_in_shared_memory(fit):
    worker, _ = fit(strategy="hogwild", max_steps=2)
    assert worker.params.is_shared()
    assert all(p.is_shared() for p in worker.replica.module.parameters())


def test_the_target_stops_and_is_kept(fit):
    _, record = fit(strategy="hogwild", epochs=50, batch_size=50, target_accuracy=0.8)
    assert record["result"]["stopped"] == "target_accuracy"
    assert record["result"]["accuracy"] >= 0.8
    assert len(record["epochs"]) < 50


def test_evaluation_is_in_eval_mode_and_leaves_the_vector_alone(fit):
    worker, _ = fit(strategy="hogwild", max_steps=5)
    before = worker.params.clone()
    first = evaluation.evaluate(worker, torch.zeros_like(before), worker.data.test, alone=True)
    assert first == evaluation.evaluate(
        worker, torch.zeros_like(before), worker.data.test, alone=True
    )
    assert torch.equal(worker.params, before)


def test_a_diverging_run_stops_with_step_and_remedy(fit):
    with pytest.raises(DivergedError, match=r"step \d+ of worker 0; try a smaller learning rate"):
        fit(strategy="hogwild", lr=1e30)


def test_a_group_gathers_sums_and_broadcasts(tmp_path):
    """Three members in three threads: each pipe end is used by one of them only."""
    pipes = [Pipe() for _ in range(2)]
    groups = [
        group(tmp_path, 0, [near for near, _ in pipes], 3),
        *(group(tmp_path, rank, [far], 3) for rank, (_, far) in enumerate(pipes, 1)),
    ]
    found = {}

    def meet(me):
        vector = torch.full((5,), float(me.rank))
        me.broadcast(vector, 2)
        found[me.rank] = (
            me.gather({"rank": me.rank}),
            me.sum(np.array([1.0, me.rank])).tolist(),
            me.maximum(np.array([me.rank, -me.rank])).tolist(),
            me.begin_maximum(np.array([me.rank])).result().tolist(),
            vector.tolist(),
        )

    threads = [threading.Thread(target=meet, args=(member,)) for member in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    gathered = [{"rank": rank} for rank in range(3)]
    assert all(f == (gathered, [3.0, 3.0], [2, 0], [2], [2.0] * 5) for f in found.values())
    assert len(found) == 3
