"""The workers' average, weighted by the examples since the last averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

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
        met: The averagings so far.
    """

    own: float
    total: float
    before: Tensor
    unit: int = 1
    met: int = 0


def weighted_mean(worker: WorkerView, vector: Tensor, algorithm: str) -> Tensor:
    """Return Σ_j (n_j / n) of the workers' vectors. Collective."""
    since: Since = worker.state
    mean = vector * (since.own / since.total)
    worker.comm.allreduce(mean, algorithm)
    return mean


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


def moments(optimizer: Optimizer) -> list[Tensor]:
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
