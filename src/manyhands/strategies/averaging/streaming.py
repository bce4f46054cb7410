"""Outer steps on fragments that take turns, while inner steps go on (Streaming DiLoCo, 2501.18512).

```
each worker k, after its step t:
    for each fragment p with t ≡ ⌊(p + 1) H / F⌋ (mod H):
        begin to sum Δ_p ← Σ_j (n_j / n) (θ_p − w_j,p)        (reduce-scatter)
    for each sum whose first half has arrived:
        begin its second half                                 (all-gather)
    for each fragment p whose sum began at t − D:
        θ_p   ← OuterOpt(θ_p, Δ_p)
        w_k,p ← α w_k,p + (1 − α) θ_p
```

F: fragments, each a contiguous 1/F of the parameters; D: delay, below H; α: 0.5 by default, 0 if
D = 0. At the end, and for evaluation, the workers' copies are averaged; what is under way then is
not used, since the copies hold their own steps in any case. With D = 1 no step lies between the two
halves, so that the second is waited for. When messages arrive changes no result: Δ_p is used at
t + D, whenever it is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.strategies.averaging.part_sum import PartSum, codec_of
from manyhands.strategies.averaging.pending_exchanges import Flight

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.strategies.averaging.mean import Since
    from manyhands.strategies.averaging.spec import AveragingSpec
    from manyhands.strategies.strategy import WorkerView


def due(strategy: AveragingSpec, t: int) -> list[int]:
    """Return the fragments that are sent after step t."""
    period, fragments = strategy.period, strategy.outer_fragments
    assert period is not None
    return [p for p in range(fragments) if t % period == (p + 1) * period // fragments % period]


def after_step(strategy: AveragingSpec, worker: WorkerView, t: int) -> None:
    """Do what follows step t: begin, continue and use exchanges. Collective."""
    since: Since = worker.state
    stream = since.stream
    assert stream is not None
    stream.gathered = False
    sent, flights = due(strategy, t), stream.flights
    if not flights and not sent:
        return
    with worker.exchanging():
        worker.comm.progress()
        stream.advance()
        flights += [_send(strategy, worker, fragment, t) for fragment in sent]
        landing = [flight for flight in flights if t >= flight.lands]
        for flight in landing:
            flight.result()
    for flight in landing:
        flights.remove(flight)
        _land(strategy, worker, flight)


def _send(strategy: AveragingSpec, worker: WorkerView, fragment: int, t: int) -> Flight:
    """Begin to sum a fragment's differences. Collective."""
    since: Since = worker.state
    outer, stream = since.outer, since.stream
    assert outer is not None
    assert stream is not None
    part = outer.parts[fragment]
    own, total = stream.marks[fragment]
    stream.marks[fragment] = since.own, since.total
    delta = outer.theta[part] - worker.params[part]
    delta *= (since.own - own) / (since.total - total)
    key = (worker.config.seed, t, fragment)
    summing = PartSum(worker.comm, delta, codec_of(strategy.outer_precision, delta.dtype), key)
    return Flight(fragment, t + strategy.outer_delay, summing)


def _land(strategy: AveragingSpec, worker: WorkerView, flight: Flight) -> None:
    """Do the fragment's outer step, and mix its result into the worker's own parameters."""
    since: Since = worker.state
    outer = since.outer
    assert outer is not None
    part = outer.parts[flight.fragment]
    outer.step(flight.result(), flight.fragment)
    outer.error = max(outer.error, flight.error)
    own, theta, alpha = worker.params[part], outer.theta[part], strategy.mix
    if alpha:
        own.mul_(alpha).add_(theta, alpha=1 - alpha)
    else:
        own.copy_(theta)
    since.met += 1


def mean_of_copies(worker: WorkerView, algorithm: str) -> Tensor:
    """Return the average of all workers' parameters; changes nobody's. Collective."""
    since: Since = worker.state
    stream = since.stream
    assert stream is not None
    if stream.gathered:
        return worker.params
    own, total = min(stream.marks, key=lambda mark: mark[1])
    known = since.total > total
    weight = (since.own - own) / (since.total - total) if known else 1 / worker.comm.size
    mean = worker.params * weight
    # An all-reduce takes messages of any tag: those of all halves are to be expected before.
    stream.advance(wait=True)
    worker.comm.allreduce(mean, algorithm)
    return mean


def gather_copies(worker: WorkerView, algorithm: str) -> None:
    """Give all workers the average of their parameters. Collective."""
    since: Since = worker.state
    stream = since.stream
    assert stream is not None
    if stream.gathered:
        return
    since.before.copy_(worker.params)
    with worker.exchanging():
        for flight in stream.flights:
            flight.result()
        stream.flights.clear()
        mean = mean_of_copies(worker, algorithm)
    worker.params.copy_(mean)
    stream.gathered = True
