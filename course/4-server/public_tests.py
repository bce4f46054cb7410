"""The public tests of assignment 4: `manyhands check --course 4-server mine.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.testing import graded


def start() -> list[np.ndarray]:
    """Return a model of three layers."""
    return [np.zeros(4), np.ones((2, 3)), np.full(5, 2.0)]


def constant(layers: list[np.ndarray], batch: int) -> list[np.ndarray]:
    """Return a gradient that depends on the batch only, so that the order does not matter."""
    return [np.full_like(layer, batch + 1.0) for layer in layers]


def expect_sum(mine: Any, comm: Any, batches: int, masters: int) -> None:
    """Train with gradients whose sum is known, and compare the weights."""
    found = mine.train(start(), constant, batches, masters, 0.5, comm)
    if comm.rank > 0:
        assert found is None, "a process other than 0 returns something"
        return
    total = 0.5 * sum(range(1, batches + 1))
    for i, (layer, before) in enumerate(zip(found, start(), strict=True)):
        wrong = np.abs(layer - (before - total)).max()
        assert wrong == 0, f"layer {i} is {wrong} off: is every batch's gradient in it, once?"


@graded(1)
def batches_are_shared_out(mine: Any, _: Any) -> None:
    """Each batch goes to one worker, and all get about as many."""
    shares = [mine.batches_of(worker, 3, 10) for worker in range(3)]
    assert sorted(batch for share in shares for batch in share) == list(range(10)), (
        f"the shares are {shares}"
    )
    assert max(map(len, shares)) - min(map(len, shares)) <= 1, f"the shares are {shares}"


@graded(2, processes=2)
def one_worker_one_master(mine: Any, comm: Any) -> None:
    """One worker and one master do all batches."""
    expect_sum(mine, comm, 6, 1)


@graded(2, processes=3)
def two_workers_one_master(mine: Any, comm: Any) -> None:
    """Two workers and one master do each batch once."""
    expect_sum(mine, comm, 7, 1)
