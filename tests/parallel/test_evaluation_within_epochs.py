"""`evaluate_every` within epochs: accuracy at more moments, and the same training."""

from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import load_file
from test_evaluate_every import SEVERAL, run
from torch import nn
from training import UP_TO_THREE, WORLD, record, smooth, train

import manyhands as mh
from manyhands.comm.mpi import MPICommunicator
from manyhands.worker import training_state

pytestmark = UP_TO_THREE
DETERMINISTIC = [
    mh.Sync(),
    mh.Averaging(),
    mh.Averaging(period=3),
    mh.Gossip(),
    mh.Server(staleness=0),
    mh.Pipeline(stages=2),
    mh.TensorParallel(slices=2),
]


def with_batchnorm():
    return nn.Sequential(
        nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 4)
    )


@pytest.mark.parametrize("every", ["7steps", "0.001s"])
@pytest.mark.parametrize("strategy", [mh.Sequential(), *DETERMINISTIC], ids=repr)
def test_training_is_the_same(blobs, tmp_path, strategy, every):
    plain, one = run(blobs, tmp_path / "1", strategy)
    often, other = run(blobs, tmp_path / "2", strategy, evaluate_every=every)
    assert plain["evaluations"] == []
    assert often["evaluations"]
    assert all(one[name].equal(other[name]) for name in one)
    assert often["result"]["loss"] == plain["result"]["loss"]
    for row, same in zip(often["epochs"], plain["epochs"], strict=True):
        assert row["workers"] == same["workers"]


@pytest.mark.parametrize("strategy", [mh.Sync(), mh.Averaging(), mh.Gossip()], ids=repr)
def test_buffers_and_dropout_are_the_same(blobs, tmp_path, strategy):
    found = []
    for place, given in enumerate([{}, {"evaluate_every": "3steps"}]):
        folder = Path(WORLD.bcast(str(tmp_path / str(place))))
        folder.mkdir(exist_ok=True)
        WORLD.Barrier()
        record(with_batchnorm, blobs, folder, strategy=strategy, batch_size=61, lr=0.1, **given)
        found.append(load_file(folder / "model.safetensors"))
    assert all(found[0][name].equal(found[1][name]) for name in found[0])


@pytest.mark.parametrize("strategy", [mh.Sequential(), *SEVERAL], ids=repr)
def test_moments_are_in_the_record(blobs, tmp_path, strategy):
    found, _ = run(blobs, tmp_path / "1", strategy, evaluate_every="0.25epochs")
    rows = found["evaluations"]
    assert len(rows) == 3 * 5
    assert [int(row["epoch"] * 4) for row in rows] == [i for i in range(20) if i % 4]
    for one, other in pairwise(rows):
        assert one["steps"] < other["steps"]
        assert one["seconds"] <= other["seconds"]
    assert all(0 <= row["test_accuracy"] <= 1 and row["test_loss"] > 0 for row in rows)
    assert [row["test_loss"] is not None for row in found["epochs"]] == [True] * 5
    # The model gets better, and the last evaluation within an epoch is near the end's.
    assert rows[-1]["test_loss"] < rows[0]["test_loss"]
    if strategy.supports.together:
        each = found["epochs"][0]
        assert all(
            row["examples"] == pytest.approx(row["epoch"] * each["examples"], rel=0.05)
            for row in rows
        )


def test_a_moment_at_an_epochs_end_is_the_epochs(blobs, tmp_path):
    plain, _ = run(blobs, tmp_path / "1", mh.Sync())
    steps = plain["epochs"][0]["steps"]
    found, _ = run(blobs, tmp_path / "2", mh.Sync(), evaluate_every=f"{2 * steps}steps")
    assert found["evaluations"] == []
    assert [row["test_loss"] is not None for row in found["epochs"]] == [
        False, True, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "strategy", [mh.Sync(), mh.Averaging(), mh.Server(), mh.Gossip(asynchronous=True)], ids=repr
)
@pytest.mark.parametrize("validation", [None, 0.2])
def test_a_target_ends_the_run_within_an_epoch(blobs, tmp_path, strategy, validation):
    given = {"target_accuracy": 0.01, "evaluate_every": "3steps", "validation": validation}
    found, _ = run(blobs, tmp_path / "1", strategy, **given)
    assert found["result"]["stopped"] == "target_accuracy"
    (end,) = found["epochs"]
    if strategy.supports.together:
        assert end["steps"] == 3
    assert end["test_accuracy"] is not None
    assert found["result"]["seconds_to_target"] == end["seconds"]


@pytest.mark.parametrize("strategy", [mh.Sync(), mh.Server(staleness=0)], ids=repr)
def test_moments_do_not_grow_without_bound(blobs, tmp_path, strategy, monkeypatch):
    monkeypatch.setattr(training_state, "MOST_MOMENTS", 8)
    monkeypatch.setattr(training_state, "MOST_COPIES", 8)
    found, _ = run(blobs, tmp_path / "1", strategy, evaluate_every="1steps")
    steps = [row["steps"] for row in found["evaluations"]]
    assert 4 <= len(steps) < 8
    apart = {b - a for a, b in pairwise(steps)}
    assert max(apart) <= 2 * min(apart)


def test_callbacks_hear_of_each_moment(blobs, tmp_path):
    heard = []

    class Hears:
        def on_evaluation(self, row):
            heard.append(row)

    folder = Path(WORLD.bcast(str(tmp_path)))
    given = {"batch_size": 61, "lr": 0.1, "epochs": 1, "evaluate_every": "5steps"}
    worker = train(
        smooth,
        blobs,
        MPICommunicator(WORLD),
        folder,
        strategy=mh.Sync(),
        callbacks=[Hears()],
        **given,
    )
    expected = [moment.row() for moment in worker.training.moments]
    assert len(expected) > 1
    assert heard == (expected if WORLD.rank == 0 else [])
