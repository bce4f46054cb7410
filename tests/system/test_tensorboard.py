"""`train --tensorboard`: the event file holds what the record holds, and nothing private."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from event_files import hyper_parameters, points

import manyhands as mh

SMALL = {
    "model": "mlp", "data": "blobs", "limit": 400, "batch_size": 50, "epochs": 2, "threads": 1,
    "kernels": "default", "workers": 2, "tensorboard": True,
}  # fmt: skip


@pytest.mark.parametrize("strategy", ["sync", "server"])
def test_event_files_hold_what_the_record_holds(strategy: str, tmp_path: Path) -> None:
    result = mh.fit(**SMALL, strategy=strategy, validation=0.25, output=str(tmp_path / "run"))
    found = points(result.output)
    assert sorted(found) == [
        "test/accuracy", "test/loss", "training_loss/by_step", "training_loss/worker_0",
        "training_loss/worker_1", "validation/accuracy", "validation/loss",
    ]  # fmt: skip
    history = result.history
    for name in ("test_loss", "test_accuracy", "validation_loss", "validation_accuracy"):
        recorded = [(row["epoch"], pytest.approx(row[name], rel=1e-6)) for row in history]
        assert found[name.replace("_", "/")] == recorded
    for rank in range(2):
        recorded = [
            (row["epoch"], pytest.approx(row["workers"][rank]["loss"], rel=1e-6)) for row in history
        ]
        assert found[f"training_loss/worker_{rank}"] == recorded
    steps = [step for step, _ in found["training_loss/by_step"]]
    assert steps == list(range(1, result.record["workers"][0]["steps"] + 1))
    options, config = hyper_parameters(result.output), result.record["config"]
    assert options.keys() == config.keys()
    assert [options[name] for name in ("lr", "strategy", "epochs", "tensorboard")] == [
        config["lr"], strategy, 2, True
    ]  # fmt: skip


def test_a_private_run_writes_test_figures_only(tmp_path: Path) -> None:
    result = mh.fit(
        **SMALL, strategy="sync", private=True, noise_multiplier=1.0, delta=1e-4,
        output=str(tmp_path / "run"),
    )  # fmt: skip
    assert sorted(points(result.output)) == ["test/accuracy", "test/loss"]


def test_a_run_that_goes_on_has_one_whole_history(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    mh.fit(**SMALL, strategy="sync", checkpoint_every="8steps", output=str(folder))
    mh.fit(resume=str(folder), epochs=3)
    found = points(folder)
    assert [epoch for epoch, _ in found["test/loss"]] == [1, 2, 3]
    assert [epoch for epoch, _ in found["training_loss/worker_1"]] == [1, 2, 3]
    assert [step for step, _ in found["training_loss/by_step"]] == list(range(1, 25))
