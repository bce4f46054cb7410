"""The instructor's tests of assignment 4; not for the hand-out."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from public_tests import constant, expect_sum, start

from manyhands.testing import graded


@graded(1)
def owners_share_the_layers(mine: Any, _: Any) -> None:
    """Every layer has a master, and all masters own about as many layers."""
    owners = [mine.owner(layer, 3) for layer in range(8)]
    counts = [owners.count(master) for master in range(3)]
    assert sum(counts) == 8, f"the owners are {owners}, expected numbers from 0 to 2"
    assert max(counts) - min(counts) <= 1, f"the masters own {counts} layers"


@graded(3, processes=2)
def one_worker_is_sequential(mine: Any, comm: Any) -> None:
    """With one worker the end is sequential SGD's, up to rounding."""

    def gradient(layers: list[np.ndarray], batch: int) -> list[np.ndarray]:
        return [layer * 0.3 + np.sin(batch) for layer in layers]

    found = mine.train(start(), gradient, 9, 1, 0.1, comm)
    if comm.rank == 0:
        layers = start()
        for batch in range(9):
            layers = [w - 0.1 * g for w, g in zip(layers, gradient(layers, batch), strict=True)]
        same = [np.allclose(a, b, rtol=0, atol=1e-14) for a, b in zip(found, layers, strict=True)]
        assert all(same), "the weights differ from those of sequential SGD"


@graded(3, processes=5)
def three_workers_two_masters(mine: Any, comm: Any) -> None:
    """Three workers and two masters do each batch once, for every layer."""
    expect_sum(mine, comm, 10, 2)


@graded(1, processes=4)
def fewer_batches_than_workers(mine: Any, comm: Any) -> None:
    """Workers without a batch do not keep the others waiting."""
    expect_sum(mine, comm, 1, 1)


@graded(3, processes=3)
def nobody_waits_for_the_slowest(mine: Any, comm: Any) -> None:
    """A fast worker has done all of its batches before a slow one has done its first."""
    workers, ends = comm.size - 1, []

    def gradient(layers: list[np.ndarray], batch: int) -> list[np.ndarray]:
        if comm.rank == 1 and not ends:
            time.sleep(2)
        ends.append(time.monotonic())
        return constant(layers, batch)

    mine.train(start(), gradient, 5 * workers, 1, 0.1, comm)
    every = comm.allgather(ends)
    assert every[0][-1] < every[1][0], "the fast worker waited for the slow one"


@graded(2, processes=4, messages=True)
def only_messages(mine: Any, comm: Any) -> None:
    """Non-blocking messages are all that is used."""
    expect_sum(mine, comm, 6, 2)


@graded(2, processes=3, messages=True)
def workers_send_gradients_once(mine: Any, comm: Any) -> None:
    """A worker sends each gradient once, to the master of its layer."""
    layers = start()
    mine.train(layers, constant, 4, 1, 0.1, comm)
    gradient = sum(layer.nbytes for layer in start())
    if comm.rank < 2:
        most = 2 * gradient + 200  # two batches, and some small messages if you like
        assert comm.bytes_sent >= 2 * gradient, f"a worker sent {comm.bytes_sent} bytes"
        assert comm.bytes_sent <= most, f"a worker sent {comm.bytes_sent} bytes, at most {most}"
