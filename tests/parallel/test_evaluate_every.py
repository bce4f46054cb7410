"""`evaluate_every`: fewer evaluations on the test set, the same training."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from training import UP_TO_THREE, WORLD, record, smooth

import manyhands as mh

pytestmark = UP_TO_THREE
GIVEN = {"batch_size": 61, "dtype": "float64", "epochs": 5, "lr": 0.1}
SEVERAL = [
    mh.Sync(),
    mh.Averaging(),
    mh.Gossip(),
    mh.Gossip(asynchronous=True),
    mh.Server(staleness=0),
    mh.Server(),
    mh.Pipeline(stages=2),
    mh.TensorParallel(slices=2),
]


def run(blobs, folder, strategy, **given):
    """Return the record and the final parameters."""
    workers = {"server": WORLD.size - 1, "pipeline": 1, "tensor": 1, "sequential": 1}.get(
        strategy.name, WORLD.size
    )
    if strategy.processes(workers) != WORLD.size or workers < 1:
        pytest.skip(f"{strategy.name} does not make {WORLD.size} processes")
    place = Path(WORLD.bcast(str(folder)))
    place.mkdir(exist_ok=True)
    WORLD.Barrier()
    found = record(smooth, blobs, place, strategy=strategy, workers=workers, **GIVEN, **given)
    return found, load_file(place / "model.safetensors")


def evaluated(found, what="test_loss"):
    return [row["epoch"] for row in found["epochs"] if row[what] is not None]


@pytest.mark.parametrize("strategy", [mh.Sequential(), *SEVERAL], ids=repr)
def test_every_second_epoch_and_the_last_are_evaluated(blobs, tmp_path, strategy):
    always, one = run(blobs, tmp_path / "1", strategy)
    seldom, other = run(blobs, tmp_path / "2", strategy, evaluate_every=2)
    assert evaluated(always) == [1, 2, 3, 4, 5]
    assert evaluated(seldom) == [2, 4, 5]
    assert seldom["result"]["loss"] == seldom["epochs"][-1]["test_loss"]
    together = strategy.supports.together
    if together or strategy == mh.Server(staleness=0):
        for row, same in zip(seldom["epochs"], always["epochs"], strict=True):
            assert row["workers"] == same["workers"]
            assert not together or row["test_loss"] in (None, same["test_loss"])
        assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("strategy", [mh.Sync(), mh.Server(staleness=0)], ids=repr)
def test_patience_still_sees_every_epoch(blobs, tmp_path, strategy):
    given = {"validation": 0.2, "patience": 5}
    always, one = run(blobs, tmp_path / "1", strategy, **given)
    seldom, other = run(blobs, tmp_path / "2", strategy, **given, evaluate_every=3)
    assert evaluated(seldom, "validation_loss") == [1, 2, 3, 4, 5]
    assert evaluated(seldom) == [3, 5]
    assert seldom["result"]["best_epoch"] == always["result"]["best_epoch"]
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("strategy", [mh.Sync(), mh.Server(staleness=0)], ids=repr)
def test_the_epoch_that_reaches_the_target_is_evaluated(blobs, tmp_path, strategy):
    given = {"validation": 0.2, "target_accuracy": 0.01, "evaluate_every": 4}
    found, _ = run(blobs, tmp_path / "1", strategy, **given)
    assert found["result"]["stopped"] == "target_accuracy"
    assert evaluated(found) == [1]
    assert found["result"]["accuracy"] is not None


def test_the_last_step_is_evaluated(blobs, tmp_path):
    found, _ = run(blobs, tmp_path / "1", mh.Sync(), evaluate_every=4, max_steps=40)
    assert found["result"]["stopped"] == "max_steps"
    assert evaluated(found) == [len(found["epochs"])]
