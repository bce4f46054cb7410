"""Callbacks in real runs: they live in worker 0's process, with every way of starting workers."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import manyhands as mh
from manyhands.callbacks import MLflow

X = np.random.default_rng(0).normal(size=(1200, 6)).astype(np.float32)
Y = X @ np.ones((6, 1), np.float32)
DATA = mh.Data((X[:1000], Y[:1000]), (X[1000:], Y[1000:]))
GIVEN = {"metric": "mae", "workers": 2, "epochs": 2, "batch_size": 50, "kernels": "default"}


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    """Let the workers import this file, whose functions and classes travel by name."""
    here, known = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, known])))


def line():
    return nn.Linear(6, 1)


class Written:
    """Writes down what it hears, since it hears it in another process."""

    def __init__(self, path):
        self.path, self.steps, self.epochs = str(path), 0, []

    def on_step(self, step):
        self.steps = step["step"]

    def on_epoch(self, epoch):
        self.epochs.append(epoch)

    def on_end(self, record):
        heard = {"steps": self.steps, "epochs": self.epochs, "record": record}
        with open(self.path, "w") as file:
            json.dump(heard, file)


@pytest.mark.parametrize("strategy", ["sync", "hogwild"])
def test_a_run_s_own_callback_hears_all_of_it(tmp_path, strategy):
    heard = Written(tmp_path / "heard.json")
    result = mh.fit(
        line, DATA, strategy=strategy, callbacks=[heard], output=str(tmp_path / "run"), **GIVEN
    )
    found = json.loads((tmp_path / "heard.json").read_text())
    assert found["record"] == result.record
    assert result.record["seconds"]["callbacks"] > 0
    for worker in result.record["workers"]:
        parts = [worker[part] for part in ("training", "evaluation", "callbacks")]
        assert worker["wall"] == pytest.approx(sum(parts))
    assert found["steps"] == result.record["result"]["steps"]
    assert [epoch["epoch"] for epoch in found["epochs"]] == [1, 2]
    known = [epoch["test_metrics"] for epoch in found["epochs"]]
    rows = [row["test_metrics"] for row in result.history]
    assert known == (rows if strategy == "sync" else [{}, {}])
    assert result.record["config"]["callbacks"].endswith("test_callbacks:Written(…)")


@pytest.mark.parametrize("strategy", ["sync", "hogwild"])
def test_mlflow_keeps_a_run_in_a_local_store(tmp_path, strategy, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # it now asks for a database otherwise
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # tests send nothing anywhere
    import mlflow

    uri = (tmp_path / "mlruns").as_uri()
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("trial")
    with mlflow.start_run() as parent:
        keeper = MLflow(who="a test")
        result = mh.fit(
            line, DATA, strategy=strategy, callbacks=[keeper], output=str(tmp_path / "run"), **GIVEN
        )
    client = mlflow.MlflowClient(uri)
    place = client.get_experiment_by_name("trial").experiment_id
    (kept,) = client.search_runs([place], "tags.who = 'a test'")
    assert kept.data.tags["mlflow.parentRunId"] == parent.info.run_id
    artifacts = client.list_artifacts(kept.info.run_id, "model")
    assert {one.path for one in artifacts} == {"model/model.safetensors", "model/run.json"}
    assert kept.info.status == "FINISHED"
    assert kept.data.tags["who"] == "a test"
    assert kept.data.params["strategy"] == strategy
    history = client.get_metric_history(kept.info.run_id, "test/mae")
    values = {point.step: point.value for point in history}
    assert values == {row["epoch"]: row["test_metrics"]["mae"] for row in result.history}
    assert "training_loss/worker_1" in kept.data.metrics
