"""The model solution of assignment 5."""

from __future__ import annotations

import math

import numpy as np
from mpi4py import MPI


def draw(records: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of the drawn records: each with probability `rate`, independently."""
    return np.flatnonzero(rng.random(records) < rate)


def clipped_sum(gradients: np.ndarray, bound: float) -> np.ndarray:
    """Return the sum of the records' gradients, each shortened to norm `bound` if it is longer."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return (gradients * (bound / np.maximum(norms, bound))).sum(0)


def noise_share(
    size: int, sigma: float, bound: float, workers: int, rng: np.random.Generator
) -> np.ndarray:
    """Return one worker's noise: variances add up, so each has the P-th part of the variance."""
    return rng.normal(size=size) * (sigma * bound / math.sqrt(workers))


def private_gradient(
    gradients: np.ndarray,
    *,
    bound: float,
    sigma: float,
    expected: float,
    comm: MPI.Comm,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the noisy sum over all workers' records, divided by `expected`."""
    own = clipped_sum(gradients, bound)
    own += noise_share(own.size, sigma, bound, comm.size, rng)
    total = np.empty_like(own)
    comm.Allreduce(own, total, MPI.SUM)
    return total / expected


def epsilon(rate: float, sigma: float, steps: int, delta: float) -> float:
    """Return ε by Rényi differential privacy, the best of the integer orders 2 to 64."""
    return min(steps * _order(a, rate, sigma) + math.log(1 / delta) / (a - 1) for a in range(2, 65))


def _order(a: int, rate: float, sigma: float) -> float:
    """Return the Rényi divergence of order a of one step."""
    if rate == 1:
        return a / (2 * sigma**2)
    logs = [
        math.log(math.comb(a, k))
        + (a - k) * math.log1p(-rate)
        + k * math.log(rate)
        + k * (k - 1) / (2 * sigma**2)
        for k in range(a + 1)
    ]
    return float(np.logaddexp.reduce(logs)) / (a - 1)
