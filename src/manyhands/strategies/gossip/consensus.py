"""The average of all workers' models, and how far the workers are from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.strategies.strategy import WorkerView


def record_mean(worker: WorkerView) -> Tensor:
    """Return the average of all workers' parameters; record their distance from it. Collective."""
    average = mean(worker)
    square = float((worker.params - average).double().square().sum())
    total = float(worker.comm.sum(np.array([square]))[0])
    distance = (total / worker.comm.size) ** 0.5
    worker.facts.setdefault("consensus_distance", []).append([worker.step, distance])
    return average


def mean(worker: WorkerView) -> Tensor:
    """Return the average of all workers' parameters; the same bits on every worker."""
    average = worker.params / worker.comm.size
    worker.comm.allreduce(average)
    return average
