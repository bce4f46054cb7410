"""Assignment 5: private SGD with many workers. Fill in what raises NotImplementedError.

Two data sets are neighbours if they differ in one record, blanked in its place. A step publishes
the sum of the clipped gradients of the drawn records, plus Gaussian noise of standard deviation
sigma · bound.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI


def draw(records: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of the drawn records: each with probability `rate`, independently."""
    raise NotImplementedError("draw")


def clipped_sum(gradients: np.ndarray, bound: float) -> np.ndarray:
    """Return the sum of the records' gradients, each shortened to norm `bound` if it is longer.

    `gradients` has one row for each record; there may be none.
    """
    raise NotImplementedError("clipped_sum")


def noise_share(
    size: int, sigma: float, bound: float, workers: int, rng: np.random.Generator
) -> np.ndarray:
    """Return one worker's noise: the workers' sum has standard deviation sigma · bound."""
    raise NotImplementedError("noise_share")


def private_gradient(
    gradients: np.ndarray,
    *,
    bound: float,
    sigma: float,
    expected: float,
    comm: MPI.Comm,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the noisy sum over all workers' records, divided by `expected`; the same everywhere.

    `gradients` are those of this worker's drawn records, `expected` is the mean number that all
    workers together draw, `rng` is this worker's own.
    """
    raise NotImplementedError("private_gradient")


def epsilon(rate: float, sigma: float, steps: int, delta: float) -> float:
    """Return ε by Rényi differential privacy, the best of the integer orders 2 to 64.

    For order a the step costs (Mironov, Talwar, Zhang 2019, arXiv 1908.10530, section 3.3)
    1/(a-1) · log Σ_k binom(a, k) (1-q)^(a-k) q^k exp(k(k-1) / (2 sigma²)), with k from 0 to a.
    Steps add up. From ε_a follows ε = ε_a + log(1/delta) / (a-1) (Mironov 2017, 1702.07476).
    """
    raise NotImplementedError("epsilon")
