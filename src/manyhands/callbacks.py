"""Callbacks: your code runs during training; adapters log runs to MLflow and Weights & Biases.

A callback is an object with any of six methods. Worker 0 calls them in its process, or with
`callbacks_in="caller"` the process that called `fit` does, while worker 0 waits:

    on_start(run)      once, before the first step: {name, config, output}, as in the
                       record
    on_step(step)      after each of worker 0's steps: {step, epoch, loss, lr}
    on_epoch(epoch)    after each of its epochs: {epoch, steps, seconds, test_loss, test_metrics,
                       validation_loss, validation_metrics, workers}, as in the record
    on_evaluation(row) after each evaluation within an epoch (`--evaluate-every 200steps`): {epoch,
                       steps, examples, seconds, test_loss, test_metrics, …}, as in the record
    on_end(record)     once, with all of run.json
    on_failure(failure) in its place if the run failed or was stopped: {name, config, output, status
                       ("failed" or "interrupted"), error}, as in the record

The process that called `fit` calls `on_failure` of its own objects, also if the run failed before
`on_start`, but not for a failure after which the run restarts. Worker 0 calls it of its copies if
the error is raised in its process. An exception in `on_failure` becomes a warning.

To end the run, return False from any method but the last two, or raise `StopTraining("why")`. All
workers stop after the same step where they step together, and after their present step elsewhere.
The run then ends like any other: it is evaluated, and record and model are written.

In `hogwild` and `server`, test figures and the other workers' losses are known only after
training: `on_epoch` lacks them, `on_evaluation` is called at the end, and `on_end` has all of them.
On a GPU a step's loss is None, because reading it would wait for the GPU. A private run passes no
training loss, and refuses `on_step`: the times of steps would reveal their numbers of records.

>>> import manyhands as mh
>>> class Losses(list):
...     def on_epoch(self, epoch):
...         self.append(epoch["test_loss"])
...         return len(self) < 2  # False: stop
>>> losses = Losses()
>>> result = mh.fit("logistic", "blobs", epochs=9, callbacks=[losses], callbacks_in="caller")
>>> end = result.record["result"]
>>> len(losses), end["stopped"], end["stopped_by"]
(2, 'callback', 'Losses.on_epoch')
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

DURING = ("on_start", "on_step", "on_epoch", "on_evaluation")  # False ends the run
EVENTS = (*DURING, "on_end", "on_failure")

_logger = logging.getLogger(__name__)


class StopTraining(Exception):  # noqa: N818 — no error: the run ends normally
    """Raised in a callback, ends the run after the present step; the message is recorded.

    Attributes:
        origin: The callback's class and method, filled in by the run.
    """

    def __init__(self, message: str = "", *, origin: str = "") -> None:
        super().__init__(message)
        self.origin = origin

    @property
    def reason(self) -> str:
        """Origin and message, as the record has them.

        >>> StopTraining("the loss is flat", origin="Mine.on_epoch").reason
        'Mine.on_epoch: the loss is flat'
        """
        return ": ".join(filter(None, [self.origin, str(self)]))


class Callback(Protocol):
    """The methods of a callback object, each of them optional; False ends the run."""

    def on_start(self, run: dict[str, Any]) -> bool | None:
        """Receive the run's name, options and output folder; False ends it after one step."""

    def on_step(self, step: dict[str, Any]) -> bool | None:
        """Receive a step of worker 0."""

    def on_epoch(self, epoch: dict[str, Any]) -> bool | None:
        """Receive an epoch of worker 0."""

    def on_evaluation(self, evaluation: dict[str, Any]) -> bool | None:
        """Receive an evaluation within an epoch."""

    def on_end(self, record: dict[str, Any]) -> None:
        """Receive the record of the finished run."""

    def on_failure(self, failure: dict[str, Any]) -> None:
        """Receive why the run failed or was stopped."""


def tell(callbacks: Iterable[Any], event: str, what: dict[str, Any]) -> StopTraining | None:
    """Call a method of every callback that has it; return the first request to stop, if any."""
    request: StopTraining | None = None
    for callback in callbacks:
        method = getattr(callback, event, None)
        if not method:
            continue
        try:
            answer = method(what)
            # A comparison of NumPy's numbers gives NumPy's False.
            refused = type(answer).__name__ in ("bool", "bool_") and not answer
            stop = StopTraining() if refused else None
        except StopTraining as raised:
            stop = raised
        if stop and not request:
            stop.origin = stop.origin or f"{type(callback).__name__}.{event}"
            request = stop
    return request


def tell_failure(callbacks: Iterable[Any], failure: dict[str, Any]) -> None:
    """Call every callback's `on_failure`; what it raises must not hide why the run failed."""
    for callback in callbacks:
        try:
            tell([callback], "on_failure", failure)
        except (Exception, SystemExit) as error:
            name = type(callback).__name__
            _logger.warning("%s.on_failure raised %s: %s", name, type(error).__name__, error)


def wanted_events(callbacks: Iterable[Any]) -> tuple[str, ...]:
    """Return the events during a run for which some callback has a method."""
    listed = list(callbacks)
    return tuple(event for event in DURING if any(hasattr(each, event) for each in listed))


def numbers(epoch: Mapping[str, Any]) -> dict[str, float]:
    """Return the known figures of an epoch, by flat names.

    >>> numbers({"test_loss": 0.5, "test_metrics": {"accuracy": 0.9}, "validation_loss": None})
    {'test/loss': 0.5, 'test/accuracy': 0.9}
    """
    values: dict[str, float | None] = {}
    for part in ("test", "validation"):
        values[f"{part}/loss"] = epoch.get(f"{part}_loss")
        metrics = epoch.get(f"{part}_metrics", {})
        values |= {f"{part}/{name}": value for name, value in metrics.items()}
    for worker in epoch.get("workers", ()):
        values[f"training_loss/worker_{worker['rank']}"] = worker["loss"]
    return {name: value for name, value in values.items() if value is not None}


class _Logger:
    """Passes the figures of each epoch to a service, each of them once."""

    def __init__(self) -> None:
        self._logged: set[tuple[int, str, float]] = set()  # (epoch, name, value)
        self._output: Path | None = None

    def on_start(self, run: dict[str, Any]) -> None:
        """Begin the run in the service, with its options."""
        self._output = Path(run["output"])
        self._logged = set()
        self._begin(run)

    def on_epoch(self, epoch: dict[str, Any]) -> None:
        """Log the figures of an epoch that are new."""
        number, known = epoch["epoch"], self._logged
        new = {n: v for n, v in numbers(epoch).items() if (number, n, v) not in known}
        known |= {(number, *figure) for figure in new.items()}
        if new:
            self._log(new, number)

    def on_end(self, record: dict[str, Any]) -> None:
        """Log what only the whole record knows, and end the run in the service."""
        for row in record["epochs"]:
            self.on_epoch(row)
        self._end(record)

    def _begin(self, run: dict[str, Any]) -> None:
        raise NotImplementedError

    def _log(self, values: dict[str, float], epoch: int) -> None:
        raise NotImplementedError

    def _end(self, record: dict[str, Any]) -> None:
        raise NotImplementedError


MLFLOW_RUNS = "mlflow.json"  # in the output folder: the ids of the runs there


class MLflow(_Logger):
    """Logs the run to MLflow (`pip install mlflow-skinny`).

    The options are logged as parameters before the first step, figures after each epoch, and at the
    end the model and the record as artifacts. Inside `with mlflow.start_run():` the run is a child
    of the active one.

    Args:
        experiment: The experiment's name; by default the active run's experiment, or "manyhands".
        uri: The tracking server or folder; by default as set by `mlflow.set_tracking_uri` or
            MLFLOW_TRACKING_URI.
        artifacts: Whether to log the model and the record.
        **tags: Tags of the run.
    """

    def __init__(
        self,
        experiment: str | None = None,
        uri: str | None = None,
        *,
        artifacts: bool = True,
        **tags: str,
    ) -> None:
        super().__init__()
        self.experiment, self.uri, self.artifacts, self.tags = experiment, uri, artifacts, tags
        self._key = json.dumps([uri, experiment, tags])  # a run may have several such loggers
        self._parent: str | None = None
        self._run: str | None = None
        self._adopt_parent()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for worker 0's process, where no run is active."""
        self._adopt_parent()
        return self.__dict__

    def _adopt_parent(self) -> None:
        """Remember this process's tracking server and active run, if it uses MLflow at all."""
        if mlflow := sys.modules.get("mlflow"):
            self.uri = self.uri or mlflow.get_tracking_uri()
            active = mlflow.active_run()
            self._parent = active.info.run_id if active else self._parent

    def _client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(self.uri)

    def _experiment_id(self, client: Any) -> Any:
        if self.experiment is None and self._parent:
            return client.get_run(self._parent).info.experiment_id
        name = self.experiment or "manyhands"
        known = client.get_experiment_by_name(name)
        return known.experiment_id if known else client.create_experiment(name)

    def _begin(self, run: dict[str, Any]) -> None:
        self._adopt_parent()
        from mlflow.entities import Param

        client = self._client()
        known = self._continue_run(client)
        if not known:
            tags = {**self.tags, **({"mlflow.parentRunId": self._parent} if self._parent else {})}
            made = client.create_run(self._experiment_id(client), tags=tags, run_name=run["name"])
            self._run = made.info.run_id
            self._write_run_id()
        config = {name: value for name, value in run["config"].items() if name not in known}
        client.log_batch(self._run, params=[Param(n, str(v)) for n, v in config.items()])

    def _continue_run(self, client: Any) -> Mapping[str, str]:
        """Continue the run that this output folder began in MLflow; return its parameters."""
        from mlflow.exceptions import MlflowException

        self._run = self._read_run_ids().get(self._key)
        if not self._run:
            return {}
        try:
            client.update_run(self._run, status="RUNNING")
            data = client.get_run(self._run).data
        except MlflowException:  # deleted, or on another server
            return {}
        for name in data.metrics:
            history = client.get_metric_history(self._run, name)
            self._logged |= {(point.step, name, point.value) for point in history}
        known: Mapping[str, str] = data.params  # MLflow refuses other values for these
        return known

    def _read_run_ids(self) -> dict[str, str]:
        """Return the ids of the runs that this output folder has begun, by logger."""
        file = self._output / MLFLOW_RUNS if self._output else None
        known: dict[str, str] = json.loads(file.read_text()) if file and file.exists() else {}
        return known

    def _write_run_id(self) -> None:
        if self._output:
            ids = {**self._read_run_ids(), self._key: self._run}
            part = self._output / f"{MLFLOW_RUNS}.part"
            part.write_text(json.dumps(ids))
            part.replace(self._output / MLFLOW_RUNS)

    def _log(self, values: dict[str, float], epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, epoch) for name, value in values.items()]
        self._client().log_batch(self._run, metrics=metrics)

    def _end(self, record: dict[str, Any]) -> None:
        client = self._client()
        client.log_metric(self._run, "seconds", record["result"]["seconds"])
        if self.artifacts and self._output:
            for name in ("model.safetensors", "run.json"):
                client.log_artifact(self._run, str(self._output / name), "model")
        client.set_terminated(self._run)
        self._run = None

    def on_failure(self, failure: dict[str, Any]) -> None:
        """End the run in MLflow as FAILED or KILLED; worker 0 may have begun it elsewhere."""
        self._output = Path(failure["output"])
        if run := self._run or self._read_run_ids().get(self._key):
            status = "KILLED" if failure["status"] == "interrupted" else "FAILED"
            self._client().set_terminated(run, status)
        self._run = None


class WandB(_Logger):
    """Logs the run to Weights & Biases (`pip install wandb`); all options go to `wandb.init`.

    The run's options are its config from the start, so a run that crashes keeps them.
    """

    samples_machine = True  # it samples the machine over time, which a private run must not reveal

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self._run: Any = None

    def _begin(self, run: dict[str, Any]) -> None:
        import wandb

        config = {**run["config"], **self.options.get("config", {})}
        self._run = wandb.init(**{"name": run["name"], **self.options, "config": config})
        self._run.define_metric("*", step_metric="epoch")

    def _log(self, values: dict[str, float], epoch: int) -> None:
        self._run.log({**values, "epoch": epoch})

    def _end(self, record: dict[str, Any]) -> None:
        self._run.summary.update(record["result"])
        self._run.finish()
        self._run = None

    def on_failure(self, failure: dict[str, Any]) -> None:
        """Finish the run of this process, so that the next `wandb.init` begins its own."""
        if self._run:
            self._run.finish(exit_code=1)
        self._run = None
