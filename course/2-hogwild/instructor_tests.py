"""The instructor's tests of assignment 2; not for the hand-out."""

from __future__ import annotations

import os
from typing import Any

import torch
from public_tests import SETTINGS, learns
from torch import Tensor, nn

from manyhands.testing import graded

LR, STEPS, BATCH = 2.0**-10, 500, 4


def total(output: Tensor, _: Tensor) -> Tensor:
    """Return a loss whose gradient is the same everywhere."""
    return output.sum() / len(output)


def constant(mine: Any, workers: int) -> float:
    """Return how many of all updates are in the model at the end, when all are equal."""
    torch.set_num_threads(1)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    x, y = torch.ones(64, 1), torch.zeros(64)
    settings = {"steps": STEPS, "batch_size": BATCH, "lr": LR, "seed": 0}
    mine.train(model, total, x, y, workers=workers, **settings)
    return float(-model.weight.detach() / (LR * STEPS * workers))


@graded(2)
def one_worker_is_sgd(mine: Any, _: Any) -> None:
    """With one worker it is plain SGD: no update is lost, none comes twice."""
    found = constant(mine, 1)
    assert found == 1, f"{found:.3f} of the updates are in the model, expected all"


@graded(3)
def every_worker_counts(mine: Any, _: Any) -> None:
    """The updates of four workers are in the model, but for the few that races lose."""
    found = constant(mine, 4)
    assert 0.5 < found <= 1, f"{found:.3f} of the updates are in the model, expected 0.5 to 1"


@graded(2)
def workers_draw_different_batches(mine: Any, _: Any) -> None:
    """Each worker draws batches of its own, and is a process of its own."""
    queue = mine.PROCESSES.SimpleQueue()
    model, x = nn.Linear(1, 1), torch.arange(64.0).reshape(-1, 1)

    def spy(output: Tensor, y: Tensor) -> Tensor:
        queue.put((os.getpid(), y.tolist()))
        return output.sum() * 0

    settings = {**SETTINGS, "steps": 3}
    mine.train(model, spy, x, torch.arange(64.0), workers=2, **settings)
    seen: dict[int, list[Any]] = {}
    for _n in range(6):
        assert not queue.empty(), "fewer than two times three steps were done"
        pid, batch = queue.get()
        seen.setdefault(pid, []).append(batch)
    assert len(seen) == 2, f"{len(seen)} processes trained, expected 2"
    assert os.getpid() not in seen, "the caller trains too"
    first, second = seen.values()
    assert first != second, "both workers draw the same batches"
    assert len({tuple(batch) for batch in first}) > 1, "a worker draws the same batch in each step"


@graded(2)
def gradients_are_private(mine: Any, _: Any) -> None:
    """Gradients are not shared between the workers, also if the model has some already."""
    model = nn.Linear(2, 3)
    model(torch.ones(1, 2)).sum().backward()
    mine.share(model)
    shared = [p.grad is not None and p.grad.is_shared() for p in model.parameters()]
    assert not any(shared), "a gradient lies in shared memory"


@graded(2)
def a_failure_is_raised(mine: Any, _: Any) -> None:
    """A worker that fails makes train raise RuntimeError."""
    wrong = torch.ones(20, 5)  # the model takes 2 numbers
    try:
        settings = {**SETTINGS, "workers": 2}
        mine.train(nn.Linear(2, 3), total, wrong, torch.zeros(20), **settings)
    except NotImplementedError:
        raise
    except RuntimeError:
        return
    raise AssertionError("train returned although its workers failed")


@graded(1)
def four_workers_learn(mine: Any, _: Any) -> None:
    """Four workers learn, also on fewer cores."""
    learns(mine, 4)
