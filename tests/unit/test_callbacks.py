"""Callbacks: who may hear of what, and what the adapters tell."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import manyhands as mh
from manyhands import callbacks
from manyhands.callbacks import MLflow, WandB, numbers, tell, tell_failure
from manyhands.errors import ConfigError


class Hears:
    def on_end(self, record: Any) -> None:
        pass


class HearsSteps(Hears):
    def on_step(self, step: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"callbacks": [object()]},
            "a object with none of on_start, on_step, on_epoch, on_evaluation, on_end, on_failure",
        ),
        (
            {"callbacks": [Hears(), HearsSteps()], "private": True, "epsilon": 3.0},
            "a HearsSteps with on_step in a private run",
        ),
        (
            {"callbacks": [WandB(project="project")], "private": True, "epsilon": 3.0},
            "a WandB in a private run: it samples what the machine does",
        ),
        ({"callbacks_in": "caller"}, "callbacks_in is 'caller', but there are no callbacks"),
        (
            {"callbacks": [Hears()], "callbacks_in": "callers"},
            "callbacks_in is 'callers'; expected worker or caller. Did you mean 'caller'",
        ),
        (
            {"callbacks": [Hears()], "callbacks_in": "caller", "hosts": "one,two"},
            "callbacks_in is 'caller' with hosts",
        ),
        ({"callbacks": "nowhere:thing"}, "there is no module 'nowhere'"),
        ({"callbacks": "mine:Heard(…)"}, r"object when the run began \(mine:Heard\(…\)\).*again"),
    ],
)
def test_what_cannot_hear_is_refused_before_anything_starts(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        mh.fit("mlp", "blobs", **given)


def of_model(model: Any, batch: Any) -> Any:
    return model(batch[0]).sum()


def test_a_loss_of_model_and_batch_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"of_model is a function of .* may mix the examples"):
        mh.fit("mlp", "blobs", loss=of_model, private=True, epsilon=3.0)
    with pytest.raises(ConfigError, match="pipeline has no process with the whole model"):
        mh.fit("mlp", "blobs", loss=of_model, strategy="pipeline")


@pytest.mark.parametrize("metric", ["acuracy", "top-k", ["mse", "mse"], 3])
def test_a_metric_that_nobody_knows_is_refused(metric: Any) -> None:
    with pytest.raises(ConfigError, match="metric"):
        mh.fit("mlp", "blobs", metric=metric)


def test_each_is_told_what_it_wants_to_hear() -> None:
    heard: list[Any] = []
    one = SimpleNamespace(on_step=lambda step: heard.append(("one", step)))
    two = SimpleNamespace(on_epoch=lambda epoch: heard.append(("two", epoch)))
    assert tell([one, two], "on_step", {"step": 1}) is None
    assert tell([one, two], "on_epoch", {"epoch": 1}) is None
    assert heard == [("one", {"step": 1}), ("two", {"epoch": 1})]


def test_every_callback_is_told_also_after_one_asked_to_stop() -> None:
    heard: list[str] = []

    def raises(step: Any) -> None:
        raise mh.StopTraining("flat")

    def refuses(step: Any) -> np.bool_:
        heard.append("refuses")
        return np.float32(step["loss"]) < 0.5

    one, two = SimpleNamespace(on_step=raises), SimpleNamespace(on_step=refuses)
    stop = tell([one, two], "on_step", {"loss": 1.0})
    assert stop is not None
    assert stop.reason == "SimpleNamespace.on_step: flat"
    assert heard == ["refuses"]
    second = tell([two], "on_step", {"loss": 1.0})
    assert second is not None
    assert second.reason == "SimpleNamespace.on_step"


@pytest.mark.parametrize("answer", [None, True, 0, "", [], 0.0])
def test_only_false_asks_to_stop(answer: Any) -> None:
    assert tell([SimpleNamespace(on_step=lambda step: answer)], "on_step", {}) is None


def row(epoch: int, loss: float | None) -> dict[str, Any]:
    metrics = {} if loss is None else {"mae": loss / 2}
    return {
        "epoch": epoch, "test_loss": loss, "test_metrics": metrics, "validation_loss": None,
        "validation_metrics": {}, "workers": [{"rank": 0, "loss": 2.0}],
    }  # fmt: skip


STARTED = {"name": "a run", "config": {"lr": 0.1}, "output": "runs/a"}
RECORD = {
    "name": "a run", "epochs": [row(1, 1.0), row(2, 0.5)], "config": {"lr": 0.1},
    "result": {"seconds": 3.0},
}  # fmt: skip


class Told(callbacks._Logger):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []

    def _begin(self, run: dict[str, Any]) -> None:
        self.log.append(run["config"])

    def _log(self, found: dict[str, float], epoch: int) -> None:
        self.log.append((epoch, found))

    def _end(self, record: dict[str, Any]) -> None:
        self.log.append(record["name"])


def test_what_is_known_only_at_the_end_is_told_then_and_nothing_twice() -> None:
    keeper = Told()
    keeper.on_start(STARTED)
    keeper.on_epoch(row(1, None))
    keeper.on_epoch(row(2, 0.5))
    keeper.on_end(RECORD)
    assert keeper.log == [
        {"lr": 0.1},
        (1, {"training_loss/worker_0": 2.0}),
        (2, {"test/loss": 0.5, "test/mae": 0.25, "training_loss/worker_0": 2.0}),
        (1, {"test/loss": 1.0, "test/mae": 0.5}),
        "a run",
    ]
    assert numbers(row(2, 0.5)) == keeper.log[2][1]


def test_a_second_run_of_the_same_logger_is_told_anew() -> None:
    keeper = Told()
    for _ in range(2):
        keeper.on_start(STARTED)
        keeper.on_epoch(row(1, 1.0))
    assert keeper.log[2:] == keeper.log[:2]


def test_nobody_is_imported_before_there_is_something_to_tell() -> None:
    MLflow("experiment"), WandB(project="project")
    assert "mlflow" not in sys.modules
    assert "wandb" not in sys.modules


class StandIn:
    """Writes down what is asked of wandb: a run with `log`, `summary` and `finish`."""

    def __init__(self) -> None:
        self.log_: list[Any] = []
        self.summary: dict[str, Any] = {}

    def init(self, **options: Any) -> StandIn:
        self.log_.append(("init", options))
        return self

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.log_.append(("define", name, step_metric))

    def log(self, found: dict[str, float]) -> None:
        self.log_.append(found)

    def finish(self, exit_code: int = 0) -> None:
        self.log_.append(f"finished with {exit_code}")


def test_weights_and_biases_are_told_by_epoch_and_what_came_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wandb = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    keeper = WandB(project="project", mode="offline", config={"mine": 1})
    keeper.on_start(STARTED)
    keeper.on_epoch(row(1, 1.0))
    keeper.on_end(RECORD)
    one = {"test/loss": 1.0, "test/mae": 0.5, "training_loss/worker_0": 2.0, "epoch": 1}
    two = {"test/loss": 0.5, "test/mae": 0.25, "training_loss/worker_0": 2.0, "epoch": 2}
    options = {"project": "project", "mode": "offline", "name": "a run"}
    begun = [("init", {**options, "config": {"lr": 0.1, "mine": 1}}), ("define", "*", "epoch")]
    assert wandb.log_ == [*begun, one, two, "finished with 0"]
    assert wandb.summary == RECORD["result"]


FAILURE = {**STARTED, "status": "failed", "error": "rank 1 died"}


def test_a_failed_run_ends_in_weights_and_biases_before_the_next_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wandb = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    keeper = WandB()
    keeper.on_failure(FAILURE)  # the worker failed before `on_start`, or in another process
    assert wandb.log_ == []
    keeper.on_start(STARTED)
    keeper.on_failure(FAILURE)
    keeper.on_failure(FAILURE)
    keeper.on_start(STARTED)
    keeper.on_end(RECORD)
    keeper.on_failure(FAILURE)
    assert [entry for entry in wandb.log_ if isinstance(entry, str)] == [
        "finished with 1", "finished with 0"
    ]  # fmt: skip


def test_an_error_in_on_failure_becomes_a_warning_and_the_others_hear_of_the_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Any] = []

    def fails(failure: Any) -> None:
        raise ConnectionError("no server")

    tell_failure([SimpleNamespace(on_failure=fails)], FAILURE)
    tell_failure([SimpleNamespace(on_failure=fails), SimpleNamespace(on_failure=heard.append)], {})
    assert heard == [{}]
    assert "SimpleNamespace.on_failure raised ConnectionError: no server" in caplog.messages
