"""What worker 0 announces of an epoch: the examples that the whole group trained, once each."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.config.options import configure
from manyhands.data import Plan
from manyhands.worker import evaluation
from manyhands.worker.clock import Clock, Epoch
from manyhands.worker.evaluation import Evaluation, trained_examples
from manyhands.worker.reporter import Reporter
from manyhands.worker.training_state import TrainingState

EXAMPLES = 300


class Group:
    """A group in which every process hands in the same."""

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.size


def make_worker(told: list[dict[str, Any]], processes: int, **options: Any) -> Any:
    """Return worker 0 after two epochs, with what an announcement needs of it."""
    config = configure({"epochs": 3, **options})
    whole = config.strategy.supports.whole_batches
    own = EXAMPLES / config.workers
    training = TrainingState(step=6)
    training.epochs += [Epoch(n, loss=9.0, examples=own, steps=3, seconds=n) for n in (1, 2)]
    batch_size = 100 // (config.workers if whole else 1)
    plan = Plan(
        config.partition_kind, examples=EXAMPLES, batch_size=batch_size, rank=0,
        size=config.workers, seed=0, whole_batches=whole,
    )  # fmt: skip
    return SimpleNamespace(
        config=config, training=training, plan=plan, comm=Group(processes), rank=0, step=6,
        clock=Clock(), reporter=Reporter(announce=told.append), replica=None,
        computation=SimpleNamespace(mechanism=None), evaluating=nullcontext,
        end_event=lambda event: None,
    )  # fmt: skip


def announce(monkeypatch: pytest.MonkeyPatch, processes: int, **options: Any) -> dict[str, Any]:
    """Return what is announced after the second epoch, without an evaluation."""
    for name in ("compare_replicas", "average_buffers"):
        monkeypatch.setattr(evaluation, name, lambda worker: None)
    monkeypatch.setattr(evaluation, "_is_due", lambda worker, epoch: False)
    told: list[dict[str, Any]] = []
    worker = make_worker(told, processes, **options)
    aim: Any = SimpleNamespace(ends=False)
    judge = Evaluation(metrics=(), aim=aim, consensus=lambda worker: worker.params, schedule=aim)
    judge.after_epoch(worker, worker.training.epochs[-1])
    return told[0]


@pytest.mark.parametrize(
    ("processes", "options"),
    [
        (3, {"strategy": "sync", "workers": 3}),
        (2, {"strategy": "pipeline", "stages": 2}),
        (2, {"strategy": "tensor", "slices": 2}),
    ],
)
def test_workers_that_step_together_count_once_and_stages_not_at_all(
    monkeypatch: pytest.MonkeyPatch, processes: int, options: dict[str, Any]
) -> None:
    event = announce(monkeypatch, processes, **options)
    assert event["trained"] == 2 * EXAMPLES
    assert len(event["workers"]) == options.get("workers", 1)
    assert (event["step"], event["stopped"]) == (6, "epochs")


def test_worker_0_of_an_asynchronous_group_announces_all_examples() -> None:
    worker = make_worker([], 3, strategy="server", workers=2)
    assert trained_examples(worker) == 2 * EXAMPLES  # by the plan: it was told nothing
    worker.training.epochs[-1].progress = 5, 510.0
    assert trained_examples(worker) == 510


def test_examples_of_the_dead_count_and_an_epoch_may_end_early() -> None:
    worker = make_worker([], 3, strategy="sync", workers=3)
    worker.training.others_saw = True
    assert trained_examples(worker, [150, 150]) == 2 * EXAMPLES
    worker.training.epochs[-1].steps = 1
    assert trained_examples(worker, [150, 150]) == pytest.approx(EXAMPLES * 4 / 3)


def test_a_private_count_stays_secret() -> None:
    worker = make_worker([], 3, strategy="sync", workers=3)
    worker.computation.mechanism = object()
    assert trained_examples(worker, [200, 200, 200]) is None
