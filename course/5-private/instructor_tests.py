"""The instructor's tests of assignment 5; not for the hand-out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from manyhands.testing import graded


@graded(2)
def clipping_is_by_record(mine: Any, _: Any) -> None:
    """Each record is clipped by itself, before the sum; no record gives zeros."""
    rows = np.random.default_rng(0).normal(size=(40, 7)) * np.linspace(0.01, 9, 40)[:, None]
    expected = sum(row * min(1, 2.0 / np.linalg.norm(row)) for row in rows)
    assert np.allclose(mine.clipped_sum(rows, 2.0), expected), "it is not the sum of clipped rows"
    assert np.array_equal(mine.clipped_sum(np.empty((0, 7)), 2.0), np.zeros(7)), "no records"
    zero = mine.clipped_sum(np.zeros((3, 7)), 2.0)
    assert np.array_equal(zero, np.zeros(7)), "gradients of zero give something else"


@graded(2)
def records_are_drawn_alone(mine: Any, _: Any) -> None:
    """Every record comes as often as any other, at most once in a draw, and alone."""
    rng, rounds = np.random.default_rng(1), 4000
    taken = np.zeros((rounds, 20))
    for row in taken:
        drawn = mine.draw(20, 0.3, rng)
        assert len(set(drawn.tolist())) == len(drawn), "a record comes twice in one draw"
        row[drawn] = 1
    spread = math.sqrt(0.3 * 0.7 / rounds)
    assert np.abs(taken.mean(0) - 0.3).max() < 5 * spread, "a record comes too often or too rarely"
    together = np.cov(taken.T) - np.diag(np.var(taken, 0))
    off = np.abs(together[~np.eye(20, dtype=bool)]).max()
    assert off < 5 * 0.21 / math.sqrt(rounds), "two records are not drawn independently"


@graded(3)
def shares_add_up(mine: Any, _: Any) -> None:
    """The sum of the workers' noise has standard deviation sigma · bound for any number of them."""
    for workers in (1, 2, 8):
        rngs = [np.random.default_rng([7, rank]) for rank in range(workers)]
        shares = [mine.noise_share(50_000, 1.5, 2.0, workers, rng) for rng in rngs]
        found = float(np.std(sum(shares)))
        assert 2.9 < found < 3.1, f"{found:.2f} with {workers} workers, expected 3"
        assert abs(float(np.mean(sum(shares)))) < 0.1, "the noise is not centred at zero"


@graded(3, processes=2)
def without_noise_it_is_the_mean(mine: Any, comm: Any) -> None:
    """Without noise and with an endless bound it is the mean of all workers' gradients."""
    rows = [np.random.default_rng(rank).normal(size=(3 + 4 * rank, 5)) for rank in range(comm.size)]
    rng = np.random.default_rng(comm.rank)
    options = {"bound": 1e9, "sigma": 0.0, "expected": 10.0, "comm": comm, "rng": rng}
    found = mine.private_gradient(rows[comm.rank], **options)
    expected = sum(each.sum(0) for each in rows) / 10
    assert np.allclose(found, expected), "it is not the sum over both workers, divided by 10"


@graded(3, processes=2)
def everyone_gets_the_same_noise_once(mine: Any, comm: Any) -> None:
    """All workers get the same result, noise of sigma · bound / expected included."""
    rng = np.random.default_rng([3, comm.rank])
    options = {"bound": 2.0, "sigma": 1.0, "expected": 4.0, "comm": comm, "rng": rng}
    found = mine.private_gradient(np.empty((0, 40_000)), **options)
    every = comm.allgather(found)
    assert np.array_equal(every[0], every[1]), "the two workers get different gradients"
    spread = float(np.std(found))
    assert 0.48 < spread < 0.52, f"the noise has {spread:.3f}, expected 2 · 1 / 4 = 0.5"


@graded(4)
def epsilon_by_the_formula(mine: Any, _: Any) -> None:
    """ε follows the formula, without overflow at small noise."""
    for rate, sigma, steps in ((0.01, 1.0, 1000), (0.1, 2.0, 50), (1.0, 4.0, 1), (0.02, 0.5, 10)):
        best = math.inf
        for a in range(2, 65):
            terms = [
                math.log(math.comb(a, k))
                + ((a - k) * math.log1p(-rate) if a > k and rate < 1 else 0.0)
                + (k * math.log(rate) if k else 0.0)
                + k * (k - 1) / (2 * sigma**2)
                for k in range(a + 1)
                if rate < 1 or k == a
            ]
            top = max(terms)
            cost = (top + math.log(sum(math.exp(t - top) for t in terms))) / (a - 1)
            best = min(best, steps * cost + math.log(1e5) / (a - 1))
        found = mine.epsilon(rate, sigma, steps, 1e-5)
        assert math.isclose(found, best, rel_tol=1e-6), (
            f"epsilon({rate}, {sigma}, {steps}, 1e-05) is {found}, expected {best:.6f}"
        )
