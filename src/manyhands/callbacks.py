"""Callbacks: your code runs during training; adapters log runs to MLflow and Weights & Biases.

A callback is an object with any of four methods, called in worker 0's process:

    on_step(step)      after each of worker 0's steps: {step, epoch, loss, lr}
    on_epoch(epoch)    after each of its epochs: {epoch, steps, seconds, test_loss, test_metrics,
                       validation_loss, validation_metrics, workers}, as in the record
    on_evaluation(row) after each evaluation within an epoch (`--evaluate-every 200steps`): {epoch,
                       steps, examples, seconds, test_loss, test_metrics, …}, as in the record
    on_end(record)     once, with all of run.json

In `hogwild` and `server`, test figures and the other workers' losses are known only after
training: `on_epoch` lacks them, `on_evaluation` is called at the end, and `on_end` has all of them.
On a GPU a step's loss is None, because reading it would wait for the GPU. A private run passes no
training loss, and refuses `on_step`: the times of steps would reveal their numbers of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

EVENTS = ("on_step", "on_epoch", "on_evaluation", "on_end")


class Callback(Protocol):
    """The methods of a callback object, each of them optional."""

    def on_step(self, step: dict[str, Any]) -> None:
        """Receive a step of worker 0."""

    def on_epoch(self, epoch: dict[str, Any]) -> None:
        """Receive an epoch of worker 0."""

    def on_evaluation(self, evaluation: dict[str, Any]) -> None:
        """Receive an evaluation within an epoch."""

    def on_end(self, record: dict[str, Any]) -> None:
        """Receive the record of the finished run."""


def tell(callbacks: Iterable[Any], event: str, what: dict[str, Any]) -> None:
    """Call a method of every callback that has it."""
    for callback in callbacks:
        method = getattr(callback, event, None)
        if method:
            method(what)


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


class _Keeper:
    """Tells somebody who keeps runs of each epoch, of every number once."""

    def __init__(self) -> None:
        self._told: set[tuple[int, str]] = set()

    def on_epoch(self, epoch: dict[str, Any]) -> None:
        """Tell what is new about an epoch."""
        new = {n: v for n, v in numbers(epoch).items() if (epoch["epoch"], n) not in self._told}
        self._told |= {(epoch["epoch"], name) for name in new}
        if new:
            self._tell(new, epoch["epoch"])

    def on_end(self, record: dict[str, Any]) -> None:
        """Tell what only the whole record knows, then the options and the result."""
        for row in record["epochs"]:
            self.on_epoch(row)
        self._end(record)

    def _tell(self, values: dict[str, float], epoch: int) -> None:
        raise NotImplementedError

    def _end(self, record: dict[str, Any]) -> None:
        raise NotImplementedError


class MLflow(_Keeper):
    """Keeps the run in MLflow (`pip install mlflow-skinny`).

    Args:
        experiment: The experiment's name.
        uri: The tracking server or folder; by default as MLFLOW_TRACKING_URI says.
        **tags: Tags of the run.
    """

    def __init__(self, experiment: str = "manyhands", uri: str | None = None, **tags: str) -> None:
        super().__init__()
        self.experiment, self.uri, self.tags = experiment, uri, tags
        self._run: str | None = None

    def _client(self) -> Any:
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        if self._run is None:
            experiment = client.get_experiment_by_name(self.experiment)
            place = (
                experiment.experiment_id
                if experiment
                else client.create_experiment(self.experiment)
            )
            self._run = client.create_run(place, tags=self.tags).info.run_id
        return client

    def _tell(self, values: dict[str, float], epoch: int) -> None:
        client = self._client()
        for name, value in values.items():
            client.log_metric(self._run, name, value, step=epoch)

    def _end(self, record: dict[str, Any]) -> None:
        client = self._client()
        for name, value in record["config"].items():
            client.log_param(self._run, name, value)
        client.log_metric(self._run, "seconds", record["result"]["seconds"])
        client.set_tag(self._run, "mlflow.runName", record["name"])
        client.set_terminated(self._run)


class WandB(_Keeper):
    """Keeps the run in Weights & Biases (`pip install wandb`); all options go to `wandb.init`."""

    samples_machine = True  # what a private run's processes use over time, it would tell

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self._run: Any = None

    def _tell(self, values: dict[str, float], epoch: int) -> None:
        if self._run is None:
            import wandb

            self._run = wandb.init(**self.options)
            self._run.define_metric("*", step_metric="epoch")
        self._run.log({**values, "epoch": epoch})

    def _end(self, record: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.config.update(record["config"])
            self._run.summary.update(record["result"])
            self._run.finish()
