"""A part of the training set kept aside: judged exactly, stopped by, and the best model kept."""

import pytest
import torch
from mpi4py import MPI
from safetensors.torch import load_file
from training import UP_TO_THREE, WORLD, distance, record, smooth, train

import manyhands as mh
from manyhands.data import Stored

pytestmark = UP_TO_THREE
GIVEN = {"validation": 0.2, "batch_size": 61, "dtype": "float64", "epochs": 2, "lr": 0.1}


def test_workers_judge_what_one_would_and_never_train_on_it(blobs, tmp_path):
    one = train(smooth, blobs, MPI.COMM_SELF, tmp_path, strategy="sequential", **GIVEN)
    many = train(smooth, blobs, WORLD, tmp_path, strategy="sync", **GIVEN)
    assert distance(one.params, many.params) < 1e-10
    assert sum(epoch.examples for epoch in one.training.epochs) == 2 * 1600
    for alone, together in zip(one.training.epochs, many.training.epochs, strict=True):
        assert together.validation_loss == pytest.approx(alone.validation_loss, abs=1e-10)
        assert together.validation_metrics == alone.validation_metrics != {}
        assert together.validation_loss != together.test_loss


STRATEGIES = [mh.Sync(), mh.Averaging(period=5), mh.Gossip(), mh.Server(masters=1)]


@pytest.mark.skipif(WORLD.size < 2, reason="strategies of several workers")
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_patience_ends_the_run_and_the_best_model_is_kept(blobs, tmp_path, strategy):
    """With so large a rate the loss soon stops falling."""
    workers = WORLD.size - (strategy.name == "server")
    given = {**GIVEN, "lr": 1.5, "momentum": 0.9, "epochs": 40, "workers": workers, "patience": 2}
    given["clip_norm"] = 5.0
    found = record(smooth, blobs, tmp_path, strategy=strategy, **given)
    result, rows = found["result"], found["epochs"]
    losses = [row["validation_loss"] for row in rows]
    assert result["stopped"] == "patience"
    assert result["best_epoch"] == losses.index(min(losses)) + 1
    assert found["data"]["validation"] == 400
    folder = WORLD.bcast(str(tmp_path))
    kept = smooth().double()
    kept.load_state_dict(load_file(f"{folder}/best.safetensors"))
    stored = Stored.open(blobs, dtype="float64")
    stored.hold_out(0.2, seed=0)
    ((x, y),) = stored.validation.slices(0, 400, 400)
    with torch.inference_mode():
        loss = torch.nn.functional.cross_entropy(kept(x), y).item()
    assert loss == pytest.approx(min(losses), abs=1e-8)


def constant(output, target):
    return float("nan")


def test_a_metric_that_is_no_number_is_not_known(blobs, folder):
    found = record(smooth, blobs, folder, metrics=(constant,), epochs=1, batch_size=50)
    assert found["status"] == "finished"
    assert found["result"]["metrics"] == {}


def test_a_run_starts_from_given_weights(blobs, tmp_path):
    first = record(smooth, blobs, tmp_path, strategy="sync", **GIVEN)
    folder = WORLD.bcast(str(tmp_path))
    given = {**GIVEN, "lr": 1e-12, "max_steps": 1, "init": f"{folder}/model.safetensors"}
    WORLD.Barrier()
    again = train(smooth, blobs, WORLD, tmp_path, strategy="sync", **given)
    assert again.training.epochs[-1].test_loss == pytest.approx(first["result"]["loss"], abs=1e-9)


def test_weights_of_another_model_are_refused(blobs, tmp_path):
    record(smooth, blobs, tmp_path, strategy="sync", **GIVEN)
    folder = WORLD.bcast(str(tmp_path))
    given = {**GIVEN, "init": f"{folder}/model.safetensors"}
    WORLD.Barrier()
    with pytest.raises(mh.ConfigError, match=r"init is .*does not fit"):
        train(lambda: torch.nn.Linear(20, 4), blobs, WORLD, tmp_path, strategy="sync", **given)
