"""Stopping by what was kept aside, where no MPI is: the best and the last model are there.

tests/parallel/test_validation.py has the strategies over MPI.
"""

import pytest
import torch
import torch.nn.functional as F

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
    stored.keep_aside(0.2, seed=0)
    ((x, y),) = stored.validation.slices(0, 400, 400)
    with torch.inference_mode():
        best, last = (F.cross_entropy(m(x), y).item() for m in (result.best, result.model))
    assert best == pytest.approx(min(losses), rel=1e-4)
    assert last == pytest.approx(losses[-1], rel=1e-4)
