"""Evaluates the model after each epoch, and checks that all workers evaluate the same one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from manyhands.errors import DivergedError, WorkerError
from manyhands.worker.abilities import Asynchronous

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.data import Split
    from manyhands.model.metrics import Metric
    from manyhands.worker.clock import Epoch
    from manyhands.worker.stopping import Aim
    from manyhands.worker.worker import EvaluationGate, Worker

# Examples that are judged at a time: as fast as many on a core, and of less memory.
_AT_A_TIME = {"cpu": 250, "cuda": 1000}


Consensus = Callable[["Worker"], "Tensor"]  # a strategy's: the parameters to evaluate


@dataclass(kw_only=True)
class Evaluation:
    """What a worker does after each epoch: it evaluates the model, or keeps a copy for later.

    Attributes:
        metrics: What the model is judged by beside the loss.
        aim: What ends the run early, and which epoch is the best.
        consensus: Returns the parameters to evaluate; see `Strategy.consensus`.
        gate: Stops the others while worker 0 evaluates, where workers do not step together.
    """

    metrics: tuple[Metric, ...]
    aim: Aim
    consensus: Consensus
    gate: EvaluationGate | None = None

    def after_step(self, worker: Worker, examples: int) -> None:
        """Wait while worker 0 evaluates; a hook only where workers do not step together."""
        if self.gate:
            self.gate.wait()

    def after_epoch(self, worker: Worker, epoch: Epoch) -> None:
        """Evaluate the model with all workers; where they do not step together, worker 0 keeps it.

        Collective where workers step together.
        """
        if worker.config.strategy.supports.together:
            self._evaluate_together(worker, epoch)
        elif worker.rank == 0 and worker.training.stopped != "signal":
            with worker.evaluating():
                self._keep(worker, epoch)
                worker.reporter.announce_epoch(epoch, [epoch.seen()])
            worker.reporter.end_epoch(epoch, worker.step, [epoch.seen()], worker.clock)

    def _keep(self, worker: Worker, epoch: Epoch) -> None:
        """Keep worker 0's copy of the parameters where it is due; judge it if that may end the run.

        The other workers wait while worker 0 judges: otherwise the model would train on, and the
        time to the target would leave that training out.
        """
        # A run that is resumed past its last step has kept this epoch's copy already.
        # A worker that takes the place of a dead worker 0 has none of the epochs before.
        strategy, training, before = worker.config.strategy, worker.training, epoch.epoch - 1
        due = _is_due(worker, epoch)
        copy = self.consensus(worker).clone() if due or self.aim.ends else None
        training.kept[before:] = [None] * (before - len(training.kept)) + [copy]
        epoch.progress = strategy.progress(worker) if isinstance(strategy, Asynchronous) else None
        if copy is not None and self.aim.ends:
            with self.gate.closed() if self.gate else nullcontext():
                evaluate_epoch(worker, epoch, copy, alone=True, test=due)
                training.stopped = self.aim.over(training.epochs) or training.stopped

    def _evaluate_together(self, worker: Worker, epoch: Epoch) -> None:
        training, reporter = worker.training, worker.reporter
        with worker.evaluating():
            if worker.config.strategy.supports.identical:
                compare_replicas(worker)
            average_buffers(worker)
            due = _is_due(worker, epoch)
            if due or self.aim.ends:
                params = self.consensus(worker)
                evaluate_epoch(worker, epoch, params, test=due)
                training.stopped = self.aim.over(training.epochs) or training.stopped
                if not due and training.stopped != "epochs":  # this epoch is the last
                    epoch.test_loss, epoch.test_metrics = evaluate(worker, params, worker.data.test)
            seen = worker.comm.gather(epoch.seen())
            reporter.announce_epoch(epoch, seen)
        reporter.end_epoch(epoch, worker.step, seen[: worker.config.workers], worker.clock)
        worker.wait_for_callbacks("on_epoch")


def _is_due(worker: Worker, epoch: Epoch) -> bool:
    """Say whether the epoch that has just ended is to be evaluated on the test set."""
    last = epoch.epoch == worker.config.epochs or worker.training.stopped != "epochs"
    return last or epoch.epoch % worker.config.evaluate_every == 0


def evaluate_epoch(
    worker: Worker, epoch: Epoch | None, params: Tensor, *, alone: bool = False, test: bool = True
) -> None:
    """Note how `params` do on the test set and on what is kept aside; see `evaluate`.

    `epoch` is None on a process that only helps; `test` False leaves the test set out.
    """
    tested = evaluate(worker, params, worker.data.test if test else None, alone=alone)
    aside = evaluate(worker, params, worker.data.validation, alone=alone)
    if epoch:
        epoch.test_loss, epoch.test_metrics = tested
        epoch.validation_loss, epoch.validation_metrics = aside
        keep_best, aim = worker.reporter.keep_best, worker.evaluation.aim
        if keep_best and not alone and aim.best(worker.training.epochs) is epoch:
            keep_best(worker.replica, params)


def evaluate(
    worker: Worker, params: Tensor, split: Split | None, *, alone: bool = False
) -> tuple[float | None, dict[str, float]]:
    """Return the loss of `params` on `split`, and the metrics by name.

    All workers hold the same `params` and judge a part of the set each; with `alone`, this
    worker judges its own on the whole set.
    """
    if split is None:
        return None, {}
    rank, size = (0, 1) if alone else (worker.comm.rank, worker.comm.size)
    first, last = rank * len(split) // size, (rank + 1) * len(split) // size
    part = split.slices(first, last, _AT_A_TIME[params.device.type])
    metrics = worker.evaluation.metrics
    with worker.replica.holding(params):
        sums = np.array(worker.replica.evaluate(part, metrics), dtype=np.float64)
    if not alone:
        sums = worker.comm.sum(sums)
        for metric in metrics:
            metric.merge(worker.comm)
    if not math.isfinite(sums[0]):
        raise DivergedError(
            f"the loss outside of training is {sums[0]} after step {worker.step}; try a smaller "
            f"learning rate than {worker.lr:.3g}",
            rank=worker.rank,
        )
    values = {metric.name: metric.value() for metric in metrics}
    # One that is no number, as of a constant output the correlation, is not known.
    known = {name: value for name, value in values.items() if math.isfinite(value)}
    return float(sums[0] / sums[1]), known


def compare_replicas(worker: Worker) -> None:
    """Refuse to go on when a replica differs: synchronous replicas are equal bit for bit."""
    if worker.comm.size == 1:
        return
    digest = hashlib.blake2b(worker.params.cpu().numpy().data, digest_size=8).hexdigest()
    digests = worker.comm.gather(digest)
    different = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if different:
        raise WorkerError(
            f"after step {worker.step} the parameters of rank {', '.join(map(str, different))} "
            "differ from rank 0's; something on that rank changes them outside of the strategy",
            rank=different[0],
        )


def average_buffers(worker: Worker) -> None:
    """Average BatchNorm's statistics and the like, so that all judge one model. Collective."""
    if worker.comm.size > 1:
        for buffer, ours in worker.replica.shared_buffers():
            mine = buffer.cpu().numpy().astype(np.float64)
            if not ours or worker.role == "master":
                mine = np.zeros_like(mine)  # not a product: of an infinity that would be NaN
            buffer.copy_(torch.as_tensor(worker.comm.sum(mine) / worker.config.workers))
