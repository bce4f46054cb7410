"""Writes TensorBoard event files: losses and accuracies while a run trains.

Only imported where a run asks for it, and by worker 0 alone. Of a private run nothing is written
but how the model does on the test set.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from manyhands.config.options import flatten
from manyhands.launch import atomic_files
from manyhands.training.output_folder import TENSORBOARD

if TYPE_CHECKING:
    from manyhands.worker.worker import Worker

POINTS = 1000  # steps of a run that are shown at the most, about


class Scalars:
    """A callback that writes worker 0's scalars after each epoch, and the rest at the end.

    Where workers do not step together, test figures and the other workers' losses are known only
    then. A run that goes on writes its history anew: what an earlier process left is removed.
    """

    def __init__(self, worker: Worker, output: Path) -> None:
        folder = output / TENSORBOARD
        atomic_files.make_folder(folder)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._worker = worker
        self._names = [m.name for m in worker.evaluation.metrics]
        self._writer: Any = SummaryWriter(str(folder))
        self._opened = time.time()
        self._ends: dict[int, float] = {}  # when each epoch ended
        self._known: set[tuple[str, int]] = set()
        self._over = False
        self._evaluated_until = 0
        self._restored, self._told = len(worker.training.losses), 0
        config = worker.config
        steps = sum(worker.plan.steps(e) for e in range(1, config.epochs + 1))
        self._write_options()
        self._every = max(1, math.ceil(min(steps, config.max_steps or steps) / POINTS))

    def on_epoch(self, event: dict[str, Any]) -> None:
        """Write the scalars of an epoch."""
        config, number = self._worker.config, event["epoch"]
        self._ends[number] = time.time()
        if config.strategy.supports.together:
            for epoch in self._worker.training.epochs:  # with those before a run went on
                self._judged(epoch.epoch, vars(epoch))
        for seen in event["workers"]:
            self._trained(number, seen["rank"], seen["loss"])
        self._steps()
        self._writer.flush()

    def on_evaluation(self, row: dict[str, Any]) -> None:
        """Write an evaluation within an epoch, by step; of a private run only at the end."""
        if not self._worker.config.privacy:
            self._evaluated([moment.row() for moment in self._worker.training.moments])
            self._writer.flush()

    def on_end(self, record: Mapping[str, Any]) -> None:
        """Write the scalars of the whole run, and close the file."""
        self._over = True
        for row in record["epochs"]:
            self._judged(row["epoch"], row)
            for seen in row["workers"]:
                self._trained(row["epoch"], seen["rank"], seen["loss"])
        self._evaluated(record["evaluations"])
        self._steps()
        self._writer.file_writer.add_summary(self._session_end)
        self._writer.close()

    def _write_options(self) -> None:
        """Write the run's options as hyper-parameters, beside the figures on the test set."""
        kinds = (bool, int, float, str)
        options = {
            name: value if isinstance(value, kinds) else str(value)
            for name, value in flatten(self._worker.config).items()
        }
        tags = dict.fromkeys(["test/loss", *(f"test/{name}" for name in self._names)])
        experiment, start, self._session_end = hparams(  # type: ignore[no-untyped-call]
            options, tags
        )
        for summary in (experiment, start):
            self._writer.file_writer.add_summary(summary)

    def _judged(self, epoch: int, row: Mapping[str, Any]) -> None:
        for part in ("test", "validation"):
            self._once(f"{part}/loss", row[f"{part}_loss"], epoch)
            for name, value in row[f"{part}_metrics"].items():
                self._once(f"{part}/{name}", value, epoch)

    def _evaluated(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the evaluations within epochs that are not written yet; their steps only rise."""
        for row in rows:
            if row["steps"] > self._evaluated_until:
                self._evaluated_until = row["steps"]
                for part in ("test", "validation"):
                    values = {"loss": row[f"{part}_loss"], **row[f"{part}_metrics"]}
                    for name, value in values.items():
                        if value is not None:
                            self._writer.add_scalar(f"{part}_by_step/{name}", value, row["steps"])

    def _trained(self, epoch: int, rank: int, loss: float | None) -> None:
        if not self._worker.config.privacy:
            self._once(f"training_loss/worker_{rank}", loss, epoch)

    def _once(self, tag: str, value: float | None, epoch: int) -> None:
        # What comes before may be in the record only: then this waits for it, to keep the order.
        in_order = self._over or epoch == 1 or (tag, epoch - 1) in self._known
        if value is not None and in_order and (tag, epoch) not in self._known:
            self._known.add((tag, epoch))
            self._writer.add_scalar(tag, value, epoch, self._ends.get(epoch, self._opened))

    def _steps(self) -> None:
        """Write the losses of worker 0's new steps, every few steps."""
        worker = self._worker
        losses = [] if worker.config.privacy else worker.training.losses
        before = worker.step - len(losses)  # not remembered, where the group's size has changed
        ahead = time.time() - time.monotonic()
        for i in range(self._told, len(losses)):
            if (before + i) % self._every == 0 and losses[i] is not None:
                then = self._opened if i < self._restored else worker.clock.updated[i] + ahead
                self._writer.add_scalar("training_loss/by_step", losses[i], before + i + 1, then)
        self._told = len(losses)
