"""The instructor's tests of assignment 1; not for the hand-out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from public_tests import SETTINGS, blobs, flat, linear
from torch import nn

from manyhands.testing import graded


@graded(2)
def parts_follow_the_seed(mine: Any, _: Any) -> None:
    """The same seed gives the same parts, another one others, and numbers are shuffled."""
    thirds = [1 / 3, 1 / 3, 1 / 3]
    first, again, other = (mine.partition(100, thirds, seed=s) for s in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)), "not repeatable"
    assert not np.array_equal(first[0], other[0]), "seeds 3 and 4 give the same first part"
    assert sorted(len(part) for part in first) == [33, 33, 34], "parts differ by more than one"
    assert sorted(first[0].tolist()) != list(range(len(first[0]))), "the numbers are not shuffled"


@graded(2, processes=3)
def average_of_three(mine: Any, comm: Any) -> None:
    """Three processes end with the same mean, of every parameter."""
    mine_now = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    start = [np.full(p.numel(), 10.0 * comm.rank + i) for i, p in enumerate(mine_now.parameters())]
    for values, p in zip(start, mine_now.parameters(), strict=True):
        p.data = torch.from_numpy(values).float().reshape(p.shape)
    mine.average(mine_now, comm)
    for i, p in enumerate(mine_now.parameters()):
        assert torch.allclose(p, torch.full_like(p, 10.0 + i)), f"parameter {i} is not the mean"


@graded(2, processes=2)
def all_begin_alike(mine: Any, comm: Any) -> None:
    """Training without steps gives everybody the model of process 0."""
    model, (x, y) = linear(comm.rank), blobs()
    mine.train(model, x, y, comm, **{**SETTINGS, "steps": 0})
    assert np.allclose(flat(model), flat(linear(0)), atol=1e-6), "it is not process 0's model"


@graded(4, processes=2)
def trains_alone_then_averages_once(mine: Any, comm: Any) -> None:
    """Each process trains on its own part, and weights are averaged once, at the end."""
    model, (x, y) = linear(), blobs()
    seen, ends, plain, mean = [], [], mine.sgd, mine.average

    def watched_sgd(model: Any, x: Any, y: Any, **options: Any) -> None:
        seen.append(([tuple(row) for row in x.tolist()], options["batch_size"]))
        plain(model, x, y, **options)

    def watched_average(model: Any, comm: Any) -> None:
        ends.append(flat(model))
        mean(model, comm)

    mine.sgd, mine.average = watched_sgd, watched_average
    mine.train(model, x, y, comm, **SETTINGS)
    assert len(seen) == 1, f"train calls sgd {len(seen)} times, expected once"
    assert len(ends) == 1, f"train calls average {len(ends)} times, expected once"
    points, batch_size = seen[0]
    both = comm.allgather(points)
    assert len(points) == 300, f"a part of {len(points)} of 600 examples"
    assert not set(both[0]) & set(both[1]), "the parts of the two processes overlap"
    assert batch_size == 16, f"a batch of {batch_size} on each of two processes, expected 16"
    own = comm.allgather(ends[0])
    assert not np.allclose(own[0], own[1]), "both have the same weights before the average"
    assert np.allclose(flat(model), (own[0] + own[1]) / 2, atol=1e-5), "the end is not the mean"


@graded(2, processes=4)
def four_learn(mine: Any, comm: Any) -> None:
    """Four processes learn as well as one."""
    model, (x, y) = linear(), blobs()
    mine.train(model, x, y, comm, **SETTINGS)
    right = float((model(x).argmax(1) == y).float().mean())
    assert right > 0.9, f"{right:.0%} right, expected more than 90 %"


@graded(2)
def evaluates_without_dropout(mine: Any, _: Any) -> None:
    """The accuracy is measured without dropout, and training goes on with it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.9)).train()
    x, y = blobs()
    with torch.no_grad():
        expected = float((model[0](x).argmax(1) == y).float().mean())
    found = mine.accuracy(model, x, y)
    assert abs(found - expected) < 1e-6, f"{found} with dropout off is {expected}"
    assert model.training, "the model is no longer in training mode"
    mine.accuracy(model.eval(), x, y)
    assert not model.training, "a model in evaluation mode is put into training mode"
