"""Rehearses the private part of a run in one process: samplers, clipping and noise of all workers.

The code is the run's own (`make_private`, `Mechanism`); what is missing is the exchange between the
workers, which only post-processes what the mechanisms let out. It takes a fraction of a second, so
many rehearsals can show how seldom an audit fires on sound code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.config.run import RunConfig
from manyhands.experiments.audit.transcript import Recorder, Transcript
from manyhands.model.replica import Replica
from manyhands.privacy.mechanism import Mechanism
from manyhands.privacy.sampling import PoissonPlan
from manyhands.privacy.steps_rate_noise import Terms
from manyhands.training.process.data import make_plan
from manyhands.training.process.privacy import make_private


@dataclass
class _Group:
    """Answers each process of a rehearsal with what rank 0 said in the same place."""

    rank: int
    said: list[Any]
    calls: int = field(default=0)

    def gather(self, value: Any) -> list[Any]:
        """Return rank 0's value."""
        if self.rank == 0:
            self.said.append(value)
        self.calls += 1
        return [self.said[self.calls - 1]]


def rehearse(
    config: RunConfig,
    build: Callable[[], nn.Module],
    loss: Callable[..., Any],
    x: Tensor,
    y: Tensor,
    *,
    canaries: int = 1000,
    meanwhile: Callable[[list[Mechanism]], None] = lambda mechanisms: None,
) -> tuple[list[Transcript], Terms]:
    """Take all steps of all workers of a private run; return their transcripts and its terms.

    Args:
        config: A private run's; of a strategy that does not split the model.
        build: Makes the model.
        loss: Of a batch.
        x: The training set's features.
        y: Its targets.
        canaries: How many are planted.
        meanwhile: Sees the mechanisms of all processes before the first step: for planted bugs.
    """
    said: list[Any] = []
    recorders: list[Recorder] = []
    masters = config.strategy.exposure == "masters"

    def watch(mechanism: Mechanism, sampler: PoissonPlan) -> PoissonPlan:
        recorder = Recorder(mechanism, sampler, None, canaries, config.seed)
        mechanism.observer = recorder
        recorders.append(recorder)
        return cast("PoissonPlan", recorder.plan)

    before, Mechanism.watch = Mechanism.watch, staticmethod(watch)
    try:
        mechanisms, plans = [], []
        for rank in range(config.workers + masters):
            torch.manual_seed(config.seed)
            replica = Replica(build(), loss)
            plan = make_plan(config, examples=len(x), rank=rank % config.workers, ids=None)
            group = cast("Any", _Group(rank, said))
            sampler, mechanism = make_private(config, plan, replica, (x[:2], y[:2]), group)
            mechanisms.append(mechanism)
            plans.append(sampler)
    finally:
        Mechanism.watch = before
    for rank, recorder in enumerate(recorders):
        recorder.transcript.rank = rank
    meanwhile(mechanisms)
    terms = mechanisms[0].terms
    shares = [_steps(plan, terms.steps) for plan in plans[: config.workers]]
    for step in range(terms.steps):
        _step(step, mechanisms, [next(each) for each in shares], x, y, masters=masters)
    return [recorder.transcript for recorder in recorders], terms


def _steps(plan: PoissonPlan, steps: int) -> Any:
    epoch = 0
    while steps > 0:
        epoch += 1
        for share in plan.epoch(epoch):
            yield share
            steps -= 1


def _step(
    step: int, mechanisms: list[Mechanism], shares: Any, x: Tensor, y: Tensor, *, masters: bool
) -> None:
    """Take one step of each worker, and the masters' for all of them."""
    mean = torch.zeros_like(mechanisms[0].replica.params)
    for mechanism, share in zip(mechanisms, shares, strict=False):
        rows = torch.from_numpy(np.asarray(share.indices))
        if mechanism.replica.masks:
            mechanism.replica.masks.begin(step, share.indices)
        weight = 1.0 if masters else share.examples / share.total
        mechanism.gradient(x[rows], y[rows], share.examples, weight)
        mechanism.replica.params.sub_(mechanism.replica.grad, alpha=0.01)
        mean += mechanism.replica.grad / len(shares)
    if masters:
        mechanisms[-1].guard(mean, sum(share.examples for share in shares))
