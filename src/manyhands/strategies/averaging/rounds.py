"""When averaging's workers meet, what they do then with an outer optimizer, and what is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from manyhands.strategies.averaging.mean import Since, end_meeting, moment_means, weighted_mean
from manyhands.strategies.averaging.measured_period import Pace
from manyhands.strategies.averaging.outer_optimizer import MOMENTUM, RATES, Outer, split
from manyhands.strategies.averaging.part_sum import PartSum, codec_of
from manyhands.strategies.averaging.pending_exchanges import Stream

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.strategies.averaging.spec import AveragingSpec
    from manyhands.strategies.strategy import WorkerView
    from manyhands.worker.worker import Worker


def start(strategy: AveragingSpec, params: Tensor) -> Since:
    """Return the state in which a run begins."""
    since = Since(0, 0, params.clone())
    since.pace = Pace() if strategy.measured else None
    if strategy.outer:
        kind, fragments = strategy.outer_optimizer, strategy.outer_fragments
        strategy.check_fragments(len(params))
        rate, momentum = strategy.outer_lr, strategy.outer_momentum
        since.outer = Outer(
            kind,
            RATES[kind] if rate is None else rate,
            MOMENTUM if momentum is None else momentum,
            params.clone(),
            split(len(params), fragments),
        )
        since.stream = Stream([(0.0, 0.0)] * fragments) if strategy.streams else None
    return since


def ends_period(strategy: AveragingSpec, since: Since, t: int) -> bool:
    """Return whether the workers meet after step t."""
    if since.pace:
        return since.pace.due(t)
    return strategy.period is not None and t % (strategy.period * since.unit) == 0


@contextmanager
def meeting(strategy: AveragingSpec, worker: WorkerView, t: int) -> Iterator[None]:
    """Choose the next meeting by what happens inside, where the period is measured. Collective."""
    pace: Pace | None = worker.state.pace
    begin = time.monotonic()
    yield
    if pace:
        spent = time.monotonic() - begin
        seconds = strategy.period if strategy.period_unit == "seconds" else None
        share = strategy.exchange_share or 0.0
        pace.choose(worker.comm, t, spent, seconds=seconds, share=share)
        worker.facts["period"] = pace.facts()


def outer_step(strategy: AveragingSpec, worker: WorkerView) -> None:
    """Do an outer step, from whose result every worker goes on. Collective."""
    since: Since = worker.state
    outer = since.outer
    assert outer is not None
    since.before.copy_(worker.params)
    with worker.exchanging():
        delta = _mean_difference(strategy, worker, outer)
        moments = moment_means(strategy, worker)
    outer.step(delta)
    worker.params.copy_(outer.theta)
    end_meeting(strategy, worker, moments)


def _mean_difference(strategy: AveragingSpec, worker: WorkerView, outer: Outer) -> Tensor:
    """Return Δ. Collective."""
    since: Since = worker.state
    difference = outer.theta - worker.params
    if strategy.outer_precision == "full":
        return weighted_mean(worker, difference, strategy.allreduce)
    difference *= since.own / since.total
    codec = codec_of(strategy.outer_precision, difference.dtype)
    summing = PartSum(worker.comm, difference, codec, (worker.config.seed, worker.step + 1, 0))
    delta = summing.result()
    outer.error = max(outer.error, summing.error)
    return delta


def regroup(worker: Worker, algorithm: str) -> None:
    """Give all survivors the newest θ and momentum, and the average of their copies. Collective.

    A worker that missed the last outer step takes both; its own steps since are lost.
    """
    since: Since = worker.state
    outer, stream, comm = since.outer, since.stream, worker.comm
    assert outer is not None
    known = comm.gather([since.met, outer.steps])
    last = max(met for met, _ in known)
    current = [met == last for met, _ in known]
    newest = current.index(True)
    for tensor in (outer.theta, *outer.moments.values()):
        comm.broadcast(tensor, newest)
    outer.steps = list(known[newest][1])
    since.own, since.total = float(current[comm.rank]), float(sum(current))
    worker.params.copy_(weighted_mean(worker, worker.params, algorithm))
    since.own, since.total, since.met = 0.0, 0.0, last
    if stream:
        stream.marks, stream.flights = [(0.0, 0.0)] * len(outer.parts), []
        stream.gathered = True
    if since.pace:
        since.pace.regroup(comm)


def state(worker: Worker) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what happened since the last averaging, and what the parts keep. Collective."""
    since: Since = worker.state
    tensors: dict[str, Tensor] = {"before": since.before}
    numbers: dict[str, Any] = {"own": since.own, "total": since.total}
    if since.pace:
        numbers["pace"] = since.pace.state()
    for name, part in (("outer", since.outer), ("stream", since.stream)):
        if part:
            more, numbers[name] = part.state()
            tensors |= more
    return tensors, numbers


def restore(
    strategy: AveragingSpec,
    worker: Worker,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
) -> Since:
    """Return the state whose `state` that was."""
    since = start(strategy, worker.params)
    since.own, since.total = numbers["own"], numbers["total"]
    since.before = tensors["before"].to(worker.params.device)
    if since.pace:
        since.pace = Pace.restore(numbers["pace"])
    for name, part in (("outer", since.outer), ("stream", since.stream)):
        if part:
            part.restore(tensors, numbers[name])
    return since
