"""The workers' average, weighted by the examples since the last averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from manyhands.strategies.averaging.measured_period import Pace
    from manyhands.strategies.averaging.outer_optimizer import Outer
    from manyhands.strategies.averaging.pending_exchanges import Stream
    from manyhands.strategies.averaging.spec import AveragingSpec
    from manyhands.strategies.strategy import WorkerView
    from manyhands.worker.worker import Worker


@dataclass
class Since:
    """What a worker counts since the last averaging.

    Attributes:
        own: n_k, the worker's examples.
        total: n, the examples of all workers.
        before: w_k just before the last averaging; shape (dim,).
        unit: The steps that the period counts as one.
        met: The averagings, or outer steps, so far.
        pace: What measures the period, if it is measured.
        outer: The outer optimization, if there is one.
        stream: What is under way, where fragments or a delay are used; `own` and `total` then count
            from the beginning.
    """

    own: float
    total: float
    before: Tensor
    unit: int = 1
    met: int = 0
    pace: Pace | None = None
    outer: Outer | None = None
    stream: Stream | None = None


def weighted_mean(worker: WorkerView, vector: Tensor, algorithm: str) -> Tensor:
    """Return Σ_j (n_j / n) of the workers' vectors. Collective."""
    since: Since = worker.state
    mean = vector * (since.own / since.total)
    worker.comm.allreduce(mean, algorithm)
    return mean


def average(strategy: AveragingSpec, worker: WorkerView) -> None:
    """Give every worker the average, and its optimizer what it is to go on with. Collective."""
    since: Since = worker.state
    since.before.copy_(worker.params)
    with worker.exchanging():
        mean = weighted_mean(worker, worker.params, strategy.allreduce)
        moments = moment_means(strategy, worker)
    worker.params.copy_(mean)
    end_meeting(strategy, worker, moments)


def moment_means(strategy: AveragingSpec, worker: WorkerView) -> list[tuple[Tensor, Tensor]]:
    """Return the optimizer's moments that are to be averaged, each with its mean. Collective."""
    if strategy.average_optimizer != "average":
        return []
    own = list_moments(worker.optimizer)
    return [(moment, weighted_mean(worker, moment, strategy.allreduce)) for moment in own]


def end_meeting(
    strategy: AveragingSpec, worker: WorkerView, moments: list[tuple[Tensor, Tensor]]
) -> None:
    """Give the optimizer what it is to go on with, and begin to count anew."""
    for moment, mean in moments:
        moment.copy_(mean)
    if strategy.average_optimizer == "reset":
        worker.optimizer.state.clear()
    since: Since = worker.state
    since.own = since.total = 0
    since.met += 1


def average_survivors(worker: Worker, algorithm: str) -> None:
    """Give all survivors their average. Collective.

    A worker that missed the last averaging takes its result, which includes the worker's own steps.
    """
    import numpy as np

    since: Since = worker.state
    last = int(worker.comm.maximum(np.array([since.met]))[0])
    weight = since.own if since.met == last else 0.0
    if worker.comm.sum(np.array([weight]))[0] == 0:
        weight = float(since.met == last)  # no survivor has done a step since
    since.own, since.total = weight, float(worker.comm.sum(np.array([weight]))[0])
    worker.params.copy_(weighted_mean(worker, worker.params, algorithm))
    since.own, since.total, since.met = 0, 0, last + 1
    if since.pace:
        since.pace.regroup(worker.comm)


def list_moments(optimizer: Optimizer) -> list[Tensor]:
    """Return what the optimizer remembers of each parameter, in an order that all workers share."""
    import torch

    values = [value for state in optimizer.state.values() for value in state.values()]
    return [v for v in values if isinstance(v, torch.Tensor) and v.ndim and v.is_floating_point()]


def evaluate_own_models(worker: Worker) -> None:
    """Record how each worker's own model did just before the last averaging, and the average.

    The last evaluation has evaluated the average already.
    """
    from manyhands.worker.evaluation import evaluate

    with worker.evaluating():
        own = evaluate(worker, worker.state.before, worker.data.test, alone=True)
        losses, metrics = zip(*worker.comm.gather(list(own)), strict=True)
    last = worker.training.epochs[-1]
    worker.facts |= {
        "own_loss": list(losses),
        "own_accuracy": [each.get("accuracy") for each in metrics],
        "own_metrics": list(metrics),
        "average_loss": last.test_loss,
        "average_accuracy": last.test_metrics.get("accuracy"),
        "average_metrics": last.test_metrics,
    }
