"""Stopping by what was kept aside, where no MPI is: the best and the last model are there.

tests/parallel/test_validation.py has the strategies over MPI.
"""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import manyhands as mh
from manyhands.data import Stored, store


@pytest.mark.parametrize(("strategy", "workers"), [("sequential", 1), ("hogwild", 2)])
def test_patience_ends_a_run_and_the_best_and_the_last_model_are_kept(tmp_path, strategy, workers):
    result = mh.fit(
        "mlp", "blobs", strategy=strategy, workers=workers, validation=0.2, patience=2, epochs=40,
        batch_size=50, lr=1.0, momentum=0.9, clip_norm=5.0, kernels="default",
        output=str(tmp_path / "run"),
    )  # fmt: skip
    losses = [row["validation_loss"] for row in result.history]
    assert result.record["result"]["stopped"] == "patience"
    assert len(losses) < 40
    assert result.record["result"]["best_epoch"] == losses.index(min(losses)) + 1
    stored = Stored.open(store("blobs", tmp_path / "blobs"))
    stored.hold_out(0.2, seed=0)
    ((x, y),) = stored.validation.slices(0, 400, 400)
    with torch.inference_mode():
        best, last = (F.cross_entropy(m(x), y).item() for m in (result.best, result.model))
    assert best == pytest.approx(min(losses), rel=1e-4)
    assert last == pytest.approx(losses[-1], rel=1e-4)


def test_going_back_forgets_a_best_model_that_is_to_come_again(tmp_path):
    """An epoch after the checkpoint had been the best so far when the run broke off."""
    given = {"checkpoint_every": "30steps", "validation": 0.2, "lr": 1e-30, "seed": 1}
    first = mh.fit("mlp", "blobs", epochs=3, batch_size=50, output=str(tmp_path / "run"), **given)
    path = tmp_path / "run" / "best.safetensors"
    expected = load_file(path)  # that of the first epoch: with this rate none is better
    checkpoints = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [(one / "best.safetensors").exists() for one in checkpoints] == [False, True, True]
    save_file({name: value + 1 for name, value in expected.items()}, path)  # into the same file
    again = mh.fit("mlp", "blobs", resume=str(tmp_path / "run"), epochs=4)
    assert (first.record["result"]["best_epoch"], again.record["result"]["best_epoch"]) == (1, 1)
    assert all(torch.equal(value, expected[name]) for name, value in load_file(path).items())
    assert all(torch.equal(v, expected[n]) for n, v in again.best.state_dict().items())
    assert not [one.name for one in (tmp_path / "run").rglob(".best*")]
