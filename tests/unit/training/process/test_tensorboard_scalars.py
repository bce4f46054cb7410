"""Event files for TensorBoard, of a worker that only pretends to train."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from event_files import points

from manyhands.config import option_conflicts
from manyhands.config.options import configure
from manyhands.errors import ConfigError
from manyhands.training.process import tensorboard
from manyhands.training.process.tensorboard import Scalars
from manyhands.worker.clock import Epoch, Moment
from manyhands.worker.disk_backed_columns import Column
from manyhands.worker.training_state import TrainingState

STEPS = 8  # of an epoch


def pretend(
    folder: Path,
    *,
    epochs: int,
    rows: Sequence[Any] = (),
    moments: Sequence[Any] = (),
    **given: Any,
) -> None:
    """Write the events of a run in which step s of every worker has the loss s."""
    asked = configure({"workers": 1, "epochs": epochs, **given})
    worker = SimpleNamespace(
        config=asked, training=TrainingState(), step=0, clock=SimpleNamespace(updated=[]),
        plan=SimpleNamespace(steps=lambda epoch: STEPS),
        evaluation=SimpleNamespace(metrics=[]),
    )  # fmt: skip
    events = Scalars(worker, folder)  # type: ignore[arg-type]
    for number in range(1, epochs + 1):
        worker.step += STEPS
        worker.training.losses = Column(float(step) for step in range(1, worker.step + 1))
        worker.clock.updated = [time.monotonic()] * worker.step
        epoch = Epoch(number, test_loss=1.0 / number, test_metrics={"accuracy": 0.5})
        worker.training.epochs.append(epoch)
        events.on_epoch({"epoch": number, "workers": [{"rank": 0, "loss": 3.0}]})
    events.on_end({"epochs": rows, "evaluations": moments})


def test_of_a_long_run_every_so_many_steps_are_shown(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tensorboard, "POINTS", 4)
    pretend(tmp_path, epochs=3)
    found = points(tmp_path)
    assert found["training_loss/by_step"] == [(1, 1.0), (7, 7.0), (13, 13.0), (19, 19.0)]
    assert found["training_loss/worker_0"] == [(1, 3.0), (2, 3.0), (3, 3.0)]
    assert [epoch for epoch, _ in found["test/accuracy"]] == [1, 2, 3]
    assert not any("validation" in tag for tag in found)


def test_a_private_run_shows_no_training_loss_even_if_there_is_one(tmp_path: Path) -> None:
    pretend(tmp_path, epochs=2, private=True, noise_multiplier=1.0)
    assert sorted(points(tmp_path)) == ["test/accuracy", "test/loss"]


def test_evaluations_within_epochs_are_shown_by_step(tmp_path: Path) -> None:
    moments = [
        Moment(n, n / 4, 2 * n, None, 1.0 * n, test_loss=1 / n, test_metrics={"accuracy": 0.5})
        for n in (1, 2, 3)
    ]
    pretend(tmp_path, epochs=1, moments=[moment.row() for moment in moments])
    found = points(tmp_path)
    assert found["test_by_step/loss"] == [(2, 1.0), (4, 0.5), (6, pytest.approx(1 / 3))]
    assert [step for step, _ in found["test_by_step/accuracy"]] == [2, 4, 6]
    assert "validation_by_step/loss" not in found


def test_an_earlier_process_files_are_replaced(tmp_path: Path) -> None:
    for epochs in (1, 2):
        pretend(tmp_path, epochs=epochs)
    assert points(tmp_path)["test/loss"] == [(1, 1.0), (2, 0.5)]


def test_a_worker_that_came_later_has_no_loss_of_earlier_epochs(tmp_path: Path) -> None:
    judged = {"test_loss": 0.5, "test_metrics": {"accuracy": 0.5}}
    judged |= {"validation_loss": None, "validation_metrics": {}}
    rows = [
        {"epoch": number, **judged, "workers": [{"rank": 1, "loss": loss}]}
        for number, loss in ((1, None), (2, 4.0), (3, 3.0))
    ]
    pretend(tmp_path, epochs=1, rows=rows)
    found = points(tmp_path)
    assert found["training_loss/worker_1"] == [(2, 4.0), (3, 3.0)]
    assert found["test/loss"] == [(1, 1.0), (2, 0.5), (3, 0.5)]


def test_where_it_is_not_installed_the_message_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setattr(option_conflicts, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[tensorboard\]'"):
        configure({"tensorboard": True})
    assert configure({}).tensorboard is False


def test_it_is_imported_only_where_it_is_asked_for() -> None:
    code = "import sys; from manyhands.training import job, start_fit\n"
    code += "from manyhands.training.process import build, record\n"
    code += "print('tensorboard' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False"]
