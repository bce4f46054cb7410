"""Evaluates the model within and after epochs; checks that all workers evaluate the same one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from manyhands.config.strategy_class_rules import suggest_check
from manyhands.errors import DivergedError, WorkerError
from manyhands.worker.abilities import Asynchronous
from manyhands.worker.clock import Moment
from manyhands.worker.stopping import REACHED

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.data import Split
    from manyhands.model.metrics import Metric
    from manyhands.worker.clock import Epoch
    from manyhands.worker.evaluation_schedule import Schedule
    from manyhands.worker.stopping import Aim
    from manyhands.worker.worker import EvaluationGate, Worker

# Examples that are judged at a time: as fast as many on a core, and of less memory.
_AT_A_TIME = {"cpu": 250, "cuda": 1000}


Consensus = Callable[["Worker"], "Tensor"]  # a strategy's: the parameters to evaluate


@dataclass(kw_only=True)
class Evaluation:
    """What a worker does at each moment: it evaluates the model, or keeps a copy for later.

    Attributes:
        metrics: What the model is judged by beside the loss.
        aim: What ends the run early, and which epoch is the best.
        consensus: Returns the parameters to evaluate; see `Strategy.consensus`.
        schedule: Says when to evaluate on the test set.
        gate: Stops the others while worker 0 evaluates, where workers do not step together.
    """

    metrics: tuple[Metric, ...]
    aim: Aim
    consensus: Consensus
    schedule: Schedule
    gate: EvaluationGate | None = None
    _reaching: tuple[Tensor, Moment] | None = field(default=None, init=False)

    @property
    def acts_within_epochs(self) -> bool:
        """Whether there is anything to do after a step."""
        return self.schedule.every.within_epochs

    def after_step(self, worker: Worker, examples: int) -> None:
        """Evaluate if a moment is due; where workers do not step together, wait for worker 0."""
        together, training = worker.config.strategy.supports.together, worker.training
        if self.gate:
            self.gate.wait()
        over = training.stopped != "epochs" or worker.limit_reached()
        if over or not self.acts_within_epochs or not (together or worker.rank == 0):
            return
        number = self.schedule.due(worker)
        if number is None:
            return
        epoch = training.epochs[-1]
        steps = worker.plan.steps(epoch.epoch)
        if epoch.steps >= steps:  # the epoch's end evaluates
            epoch.due = True
            return
        worker.settle()
        moment = Moment(
            number=number,
            epoch=epoch.epoch - 1 + epoch.steps / steps,
            steps=worker.step,
            examples=None,
            seconds=worker.clock.seconds(),
        )
        if together:
            self._evaluate_moment_together(worker, moment)
        else:
            with worker.evaluating():
                self._keep_moment(worker, moment)

    def _evaluate_moment_together(self, worker: Worker, moment: Moment) -> None:
        """Evaluate with all workers. Collective; what reaches the target becomes the run's end."""
        training, own = worker.training, sum(e.examples for e in worker.training.epochs)
        with worker.evaluating(), _undisturbed(worker):
            if worker.config.strategy.supports.identical:
                compare_replicas(worker)
            average_buffers(worker)
            evaluate_epoch(worker, moment, self.consensus(worker))
            seconds, examples = zip(*worker.comm.gather([moment.seconds, own]), strict=True)
        if self.aim.met(moment):  # the end evaluates once more, and finds the same
            training.stopped = self.aim.reason
            return
        workers = worker.config.workers
        moment.seconds, moment.examples = max(seconds[:workers]), sum(examples[:workers])
        training.add(moment)
        worker.reporter.end_moment(
            moment, worker.clock, private=worker.computation.mechanism is not None
        )
        worker.end_event("on_evaluation")

    def _keep_moment(self, worker: Worker, moment: Moment) -> None:
        """Keep worker 0's copy, to be evaluated after training; or evaluate it if that may end it.

        See `_keep`.
        """
        strategy, training = worker.config.strategy, worker.training
        copy = self.consensus(worker).clone()
        progress = strategy.progress(worker) if isinstance(strategy, Asynchronous) else None
        if progress:
            moment.steps, moment.examples = progress
        if not self.aim.ends:
            training.add(moment, copy)
            return
        with self.gate.closed() if self.gate else nullcontext(), _undisturbed(worker):
            evaluate_epoch(worker, moment, copy, alone=True)
            if self.aim.met(moment):
                training.stopped, self._reaching = self.aim.reason, (copy, moment)
                return
        training.add(moment)

    def after_epoch(self, worker: Worker, epoch: Epoch) -> None:
        """Evaluate the model with all workers; where they do not step together, worker 0 keeps it.

        Collective where workers step together.
        """
        if worker.config.strategy.supports.together:
            self._evaluate_together(worker, epoch)
        elif worker.rank == 0 and worker.training.stopped != "signal":
            with worker.evaluating():
                self._keep(worker, epoch)
                trained = trained_examples(worker)
                worker.reporter.announce_epoch(
                    epoch, [epoch.seen()], worker.training, trained=trained
                )
            worker.reporter.end_epoch(epoch, worker.step, [epoch.seen()], worker.clock)
            worker.end_event("on_epoch")

    def _keep(self, worker: Worker, epoch: Epoch) -> None:
        """Keep worker 0's copy of the parameters where it is due; judge it if that may end the run.

        The other workers wait while worker 0 judges: otherwise the model would train on, and the
        time to the target would leave that training out.
        """
        # A run that is resumed past its last step has kept this epoch's copy already.
        # A worker that takes the place of a dead worker 0 has none of the epochs before.
        strategy, training = worker.config.strategy, worker.training
        due = _is_due(worker, epoch)
        epoch.progress = strategy.progress(worker) if isinstance(strategy, Asynchronous) else None
        copy, gate = None, self.gate
        if self._reaching:  # the target was reached within the epoch, and the others have stopped
            (copy, moment), gate = self._reaching, None
            epoch.seconds = moment.seconds
            if epoch.progress and moment.examples is not None:
                epoch.progress = moment.steps, moment.examples
        elif due or self.aim.ends:
            copy = self.consensus(worker).clone()
        training.keep(epoch.epoch, copy)
        if copy is not None and self.aim.ends:
            with gate.closed() if gate else nullcontext():
                evaluate_epoch(worker, epoch, copy, alone=True, test=due)
                if training.stopped not in REACHED:
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
            own = epoch.seen(), sum(e.examples for e in training.epochs)
            # Stages, slices and masters come after the workers, and train no further examples.
            rows, counts = zip(*worker.comm.gather(own)[: worker.config.workers], strict=True)
            trained = trained_examples(worker, counts)
            reporter.announce_epoch(epoch, rows, training, trained=trained)
        reporter.end_epoch(epoch, worker.step, list(rows), worker.clock)
        before = training.stopped
        worker.end_event("on_epoch")
        if training.stopped != before and not due:  # a callback has made this epoch the last
            with worker.evaluating():
                params = self.consensus(worker)
                epoch.test_loss, epoch.test_metrics = evaluate(worker, params, worker.data.test)


def trained_examples(worker: Worker, counts: Sequence[float] = ()) -> float | None:
    """Return the examples that all workers have trained up to the end of the current epoch.

    None in a private run, which keeps it secret. Where workers do not step together, it is what
    the strategy knows of; otherwise each counts as having done as many epochs as worker 0.

    Args:
        worker: Worker 0.
        counts: What each worker has trained, where worker 0 knows that.
    """
    training, plan = worker.training, worker.plan
    epoch = training.epochs[-1]
    if worker.computation.mechanism:
        return None
    if epoch.progress:
        return epoch.progress[1]
    if counts and not training.others_saw:
        return sum(counts)
    steps = plan.steps(epoch.epoch)  # all workers' epochs together hold as many as the set
    part = epoch.steps / steps if epoch.steps < steps else 1.0
    return plan.examples * (epoch.epoch - 1 + part)


def _is_due(worker: Worker, epoch: Epoch) -> bool:
    """Say whether the epoch that has just ended is to be evaluated on the test set."""
    last = epoch.epoch == worker.config.epochs or worker.training.stopped != "epochs"
    return last or ends_at_moment(worker, epoch)


def ends_at_moment(worker: Worker, epoch: Epoch) -> bool:
    """Say whether a moment of `--evaluate-every` falls on the end of an epoch."""
    every = worker.config.evaluations
    if every.within_epochs or every.epochs is None:
        return epoch.due
    return epoch.epoch % every.epochs == 0


@contextmanager
def _undisturbed(worker: Worker) -> Iterator[None]:
    """Put back the model's buffers and the random numbers: training must not notice."""
    device, buffers = worker.params.device, [b for b, _ in worker.replica.shared_buffers()]
    before = [buffer.clone() for buffer in buffers]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    for buffer, old in zip(buffers, before, strict=True):
        buffer.copy_(old)


def evaluate_epoch(
    worker: Worker,
    epoch: Epoch | Moment | None,
    params: Tensor,
    *,
    alone: bool = False,
    test: bool = True,
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
            f"learning rate than {worker.lr:.3g}{suggest_check(worker.config.strategy)}",
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
