"""Runs that fail, are stopped or restart: what callbacks and loggers learn of it."""

import json
import os
import signal
from pathlib import Path

import pytest
from running import workers_alive

import manyhands as mh
from manyhands.callbacks import MLflow
from manyhands.errors import LateSignalError
from manyhands.launch import launcher
from manyhands.testing import Faults

SMALL = {
    "model": "logistic", "data": "blobs", "limit": 400, "batch_size": 40, "epochs": 3, "workers": 1,
    "threads": 1, "kernels": "default", "progress": False,
}  # fmt: skip
EPOCH = 400 // 40  # steps


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Let the workers import this file, whose classes travel by name."""
    here, known = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, known])))


class Writes:
    """Writes each failure that it receives to a file, with the process and an epoch to fail in."""

    def __init__(self, path, fails_in=None):
        self.path, self.fails_in = str(path), fails_in

    def on_epoch(self, epoch):
        if epoch["epoch"] == self.fails_in:
            raise ZeroDivisionError("in the callback")

    def on_failure(self, failure):
        with open(self.path, "a") as file:
            file.write(json.dumps({**failure, "pid": os.getpid()}) + "\n")

    def read(self):
        path = Path(self.path)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Interrupts:
    """Interrupts the process that called `fit`, as Ctrl-C does, after the first epoch."""

    def __init__(self):
        self.pid = os.getpid()

    def on_epoch(self, epoch):
        if epoch["epoch"] == 1:
            os.kill(self.pid, signal.SIGINT)


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Return a client of a real, empty MLflow store."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # it now asks for a database otherwise
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # tests send nothing anywhere
    import mlflow

    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    return mlflow.MlflowClient()


def runs(client):
    place = client.get_experiment_by_name("manyhands")
    return client.search_runs([place.experiment_id])


def statuses(client):
    return [run.info.status for run in runs(client)]


def test_an_error_in_worker_0_reaches_its_callbacks_and_the_caller_s(client, tmp_path):
    writes = Writes(tmp_path / "failures", fails_in=2)
    with pytest.raises(mh.WorkerError, match="in the callback"):
        mh.fit(**SMALL, callbacks=[MLflow(), writes], output=str(tmp_path / "run"))
    in_worker, in_caller = writes.read()
    assert in_worker.pop("pid") != in_caller.pop("pid") == os.getpid()
    assert in_worker["error"] == "in the callback"
    assert "ZeroDivisionError: in the callback" in in_caller["error"]
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert in_caller == {
        **{name: record[name] for name in in_caller if name in record},
        "output": str(tmp_path / "run"),
    }
    assert record["status"] == "failed"
    (kept,) = runs(client)
    assert kept.info.status == "FAILED"
    assert kept.data.params["strategy"] == "sync"
    assert "test/accuracy" in kept.data.metrics


def test_an_error_of_a_callback_in_the_caller_is_told_once(client, tmp_path):
    writes = Writes(tmp_path / "failures", fails_in=1)
    given = {"callbacks": [MLflow(), writes], "callbacks_in": "caller"}
    with pytest.raises(ZeroDivisionError):
        mh.fit(**SMALL, **given, output=str(tmp_path / "run"))
    assert [failure["error"] for failure in writes.read()] == ["in the callback"]
    assert statuses(client) == ["FAILED"]


@pytest.mark.usefixtures("nobody_is_left")
@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (SystemExit(3), "failed", "SystemExit(3)"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
    ],
)
def test_what_is_no_exception_is_a_failure_as_well(tmp_path, error, status, words):
    """It ends the workers and is told to the other callbacks; the caller gets the very object."""
    workers = []

    class Raises:
        def on_epoch(self, epoch):
            workers.extend(workers_alive())
            raise error

        def on_failure(self, failure):
            raise SystemExit(4)

    writes = Writes(tmp_path / "failures")
    given = {"callbacks": [Raises(), writes], "callbacks_in": "caller"}
    with pytest.raises(type(error)) as raised:
        mh.fit(**{**SMALL, "workers": 2}, **given, output=str(tmp_path / "run"))
    assert raised.value is error
    assert [(failure["status"], failure["error"]) for failure in writes.read()] == [(status, words)]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == status
    assert len(workers) == 2
    assert workers_alive() == []


def test_the_caller_learns_of_a_killed_worker_0(client, tmp_path):
    writes = Writes(tmp_path / "failures")
    with Faults().kill(rank=0, step=EPOCH + 2), pytest.raises(mh.WorkerError):
        mh.fit(**SMALL, callbacks=[MLflow(), writes], output=str(tmp_path / "run"))
    (failure,) = writes.read()
    assert (failure["pid"], failure["status"]) == (os.getpid(), "failed")
    assert statuses(client) == ["FAILED"]


def test_an_interrupted_run_is_killed_in_mlflow(client, tmp_path):
    given = {"callbacks": [MLflow(), Interrupts()], "callbacks_in": "caller"}
    with pytest.raises(KeyboardInterrupt):
        mh.fit(**{**SMALL, "epochs": 500}, **given, output=str(tmp_path / "run"))
    assert statuses(client) == ["KILLED"]


def test_a_signal_after_the_last_step_does_not_take_the_end_from_the_caller_s(
    client, tmp_path, monkeypatch
):
    launch, writes = launcher.launch, Writes(tmp_path / "failures")

    def launch_late(spec, *given):
        launch(spec, *given)
        raise LateSignalError(signal.SIGTERM, spec.output)

    monkeypatch.setattr(launcher, "launch", launch_late)
    given = {"callbacks": [MLflow(), writes], "callbacks_in": "caller"}
    with pytest.raises(LateSignalError):
        mh.fit(**{**SMALL, "epochs": 1}, **given, output=str(tmp_path / "run"))
    assert statuses(client) == ["FINISHED"]
    assert writes.read() == []


def test_a_restart_is_no_failure_and_continues_the_run_in_mlflow(client, tmp_path):
    writes = Writes(tmp_path / "failures")
    with Faults().kill(rank=0, step=2 * EPOCH + 2):
        result = mh.fit(
            **SMALL, callbacks=[MLflow(), writes], on_failure="restart",
            checkpoint_every=f"{EPOCH}steps", output=str(tmp_path / "run"),
        )  # fmt: skip
    assert result.record["story"]
    assert writes.read() == []
    assert statuses(client) == ["FINISHED"]
    (kept,) = runs(client)
    history = client.get_metric_history(kept.info.run_id, "test/accuracy")
    logged = [(point.step, point.value) for point in history]
    accuracies = [row["test_metrics"]["accuracy"] for row in result.history]
    assert logged == list(enumerate(accuracies, start=1))


ROW = {"epoch": 1, "test_loss": 0.5, "test_metrics": {"accuracy": 0.75}}
RECORD = {"epochs": [ROW, {**ROW, "epoch": 2}], "result": {"seconds": 1.0}}


def started(folder, **config):
    folder.mkdir(exist_ok=True)
    return {"name": "a run", "config": config, "output": str(folder)}


def test_each_output_folder_has_one_run_in_mlflow_for_each_logger(client, tmp_path):
    run = started(tmp_path / "run", lr=0.1, epochs=1)
    first = MLflow(artifacts=False)
    first.on_start(run)
    first.on_epoch(ROW)
    first.on_failure({**run, "status": "failed", "error": ""})
    assert statuses(client) == ["FAILED"]
    again = MLflow(artifacts=False)  # of another process
    again.on_start(started(tmp_path / "run", lr=0.1, epochs=2, workers=2))
    assert statuses(client) == ["RUNNING"]
    again.on_end(RECORD)
    (kept,) = runs(client)
    assert kept.info.status == "FINISHED"
    assert kept.data.params == {"lr": "0.1", "epochs": "1", "workers": "2"}
    history = client.get_metric_history(kept.info.run_id, "test/accuracy")
    assert [(point.step, point.value) for point in history] == [(1, 0.75), (2, 0.75)]
    for logger, output in [(MLflow(who="another"), "run"), (MLflow(), "another run")]:
        logger.on_start(started(tmp_path / output))
    assert sorted(statuses(client)) == ["FINISHED", "RUNNING", "RUNNING"]


def test_a_run_that_mlflow_has_lost_begins_anew(client, tmp_path):
    run = started(tmp_path / "run")
    MLflow().on_start(run)
    (lost,) = runs(client)
    client.delete_run(lost.info.run_id)
    MLflow().on_start(run)
    (kept,) = runs(client)
    assert kept.info.run_id != lost.info.run_id


def test_mlflow_gets_options_and_figures_in_one_request_each(client, tmp_path, monkeypatch):
    import mlflow

    requests = []
    log_batch = mlflow.MlflowClient.log_batch
    monkeypatch.setattr(
        mlflow.MlflowClient,
        "log_batch",
        lambda *given, **named: (requests.append(sorted(named)), log_batch(*given, **named)),
    )
    logger = MLflow()
    logger.on_start(started(tmp_path / "run", **{f"option_{i}": i for i in range(64)}))
    logger.on_epoch(ROW)
    assert requests == [["params"], ["metrics"]]
    (kept,) = runs(client)
    assert len(kept.data.params) == 64
    assert kept.data.metrics == {"test/loss": 0.5, "test/accuracy": 0.75}
