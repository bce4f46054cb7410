"""Gossip: no centre and no all-reduce; every step each worker averages with its neighbours."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from manyhands import validate
from manyhands.config.declare import option
from manyhands.errors import ConfigError
from manyhands.strategies import staleness
from manyhands.strategies.strategy import Scaling, Strategy, Supports
from manyhands.worker.abilities import Regroupable

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.config.run import RunConfig
    from manyhands.strategies.gossip.topology import Graph
    from manyhands.strategies.strategy import BatchShare, WorkerView
    from manyhands.worker.worker import Worker

Topology = Literal["ring", "exponential", "complete", "pairs"]
_LACKS = {"sync_batchnorm": "gives every worker a model and statistics of its own"}
_TOGETHER = Supports(
    resume=True,
    outlives=True,
    torch=True,
    cuda=True,
    private=True,
    join=True,
    lacks=_LACKS,
)
_APART = Supports(
    together=False, deterministic=False, partition="random-partition", lacks=_LACKS
)  # workers do not step together


@dataclass
class _Inbox:
    """What the neighbours sent; and whether all have met at the end."""

    inbox: Tensor  # (neighbours, dim)
    averaged: bool = False


@dataclass(frozen=True)
class Gossip(Strategy, Regroupable):
    """Decentralised parallel SGD (D-PSGD, Lian et al. 2017, arXiv 1705.09056).

    ```
    each worker i, for t = 0, 1, …:
        overlap:   g_i ← ∇F_i(x_i; ξ_i)  while x_i travels to the neighbours
                   x_i ← Σ_j W_ij x_j − γ g_i
        else:      x_i ← x_i − γ ∇F_i(x_i; ξ_i)                       (adapt)
                   x_i ← Σ_j W_ij x_j                                 (then combine)
    at the end:    x   ← (1/P) Σ_i x_i

    asynchronous (AD-PSGD, Lian et al. 2018, arXiv 1710.06952), each worker at its own pace:
        g_i ← ∇F_i(x̂_i; ξ_i)  while an even i averages with a neighbour j that it chooses:
                   x_i, x_j ← (x_i + x_j) / 2                         (a thread of j answers)
        x_i ← x_i − γ g_i
    ```

    x_i: worker i's parameters; ξ_i: its part of the batch; F_i: its mean loss, times P |ξ_i| / |ξ|
    so that the mean of all F_i is the loss of the whole batch ξ; γ: learning rate; W: the mixing
    matrix, symmetric and doubly stochastic, W_ij > 0 only between neighbours; P: workers; x̂_i: x_i
    as it was when the gradient was begun.

    Guarantees:
        - One worker equals `sequential`, bit for bit.
        - Without overlap, plain SGD on the complete graph equals `sync`, up to rounding.
        - Mixing leaves the average of the workers where it is (W is checked before the launch); so
          does every average of two.
        - Asynchronously nobody waits for a gradient of anybody else: even workers ask odd ones
          only, so that none waits for one that waits.
        - When workers die, the others go on from the average of theirs, with a W of their own.
    Cost per step and worker, for dim numbers of b bytes: d messages of b·dim bytes each to its d
    neighbours (ring: 2, or 1 if P = 2; exponential: at most 2 ⌊log2 P⌋; complete: P − 1;
    pairs: 1; asynchronous: 1 from who asks, 1 back); and one all-reduce of dim numbers at the end.
    """

    name: ClassVar[str] = "gossip"
    topology: Topology = option("ring", "who talks to whom; pairs: a random matching each step")
    overlap: bool = option(False, "exchange while the gradient is computed (D-PSGD as printed)")
    asynchronous: bool = option(
        False, "average with one neighbour at a time, at one's own pace (AD-PSGD)"
    )

    def __post_init__(self) -> None:
        validate.one_of(get_args(Topology), topology=self.topology)
        if self.asynchronous and (self.overlap or self.topology == "pairs"):
            given = "overlap" if self.overlap else "topology pairs"
            raise ConfigError(
                f"asynchronous is given with {given}, which it would ignore: averages of two while "
                "a gradient is computed, are all that it does; leave one of them out"
            )

    @property
    def supports(self) -> Supports:
        """What it can do: less where workers do not step together."""
        return _APART if self.asynchronous else _TOGETHER

    @property
    def lr_scaling(self) -> Scaling:
        """Divided by the workers where these do not step together."""
        return "inverse" if self.asynchronous else "none"

    def validate(self, config: RunConfig) -> None:
        """Refuse a topology that leaves a worker alone, and weights that would not mix."""
        from manyhands.strategies.gossip.topology import check, mixing

        check(mixing(self._graph(config.workers)), name=self.topology)
        if self.topology == "pairs" and config.on_failure == "continue":
            raise ConfigError(
                "topology is 'pairs' with on_failure='continue': without one worker another is "
                "left alone; use ring, exponential or complete"
            )

    def _graph(self, workers: int) -> Graph:
        """Return who may talk to whom."""
        from manyhands.strategies.gossip.topology import graph, halves

        found = graph(self.topology, workers)
        return halves(found) if self.asynchronous else found

    def run(self, worker: Worker) -> None:
        """Train: step and mix with the neighbours, in one order or the other; then average."""
        if self.asynchronous:
            self._run_apart(worker)
        else:
            super().run(worker)

    def _run_apart(self, worker: Worker) -> None:
        from manyhands.strategies.gossip.ad_psgd import work

        noted = work(worker, self._graph(worker.comm.size))
        everyones = worker.comm.gather(noted)
        counts = [Counter(dict(each.pop("taus"))) for each in everyones]
        worker.facts |= {name: [each[name] for each in everyones] for name in everyones[0]}
        worker.facts["staleness"] = staleness.describe(counts)
        worker.params.copy_(_agreed(worker))

    def begin(self, worker: WorkerView) -> None:
        """Make room for what the neighbours send."""
        x = worker.params
        worker.state = _Inbox(x.new_empty(len(self._row(worker)) - 1, len(x)))

    def step(self, worker: WorkerView, batch: BatchShare) -> None:
        """Step and mix with the neighbours, in one order or the other."""
        x, i = worker.params, worker.rank
        w = self._row(worker)  # W_ij by j
        received = dict(zip((j for j in w if j != i), worker.state.inbox, strict=True))
        xi = batch._replace(weight=batch.weight * worker.comm.size)
        if self.overlap:
            arrive = worker.comm.exchange(x, received)
            g = worker.gradient(xi)
            try:
                with worker.exchanging():
                    arrive()
                    _mix(x, w, i, received)
            finally:  # also without a neighbour that has died: others go on from here
                worker.update(g)
        else:
            worker.update(worker.gradient(xi))
            with worker.exchanging():
                worker.comm.exchange(x, received)()
                _mix(x, w, i, received)

    def finish(self, worker: WorkerView) -> None:
        """Give every worker the average."""
        with worker.exchanging():
            worker.params.copy_(_mean(worker))
        worker.state.averaged = True

    def regroup(self, worker: Worker) -> None:
        """Start again from the average of those who are left."""
        worker.params.copy_(_mean(worker))

    def _row(self, worker: WorkerView) -> dict[int, float]:
        """Return worker i's row of W at this step."""
        from manyhands.strategies.gossip.topology import row

        step = worker.step if self.topology == "pairs" else 0
        size, seed = worker.comm.size, worker.config.seed
        return row(self.topology, size, worker.rank, seed=seed, step=step)

    def consensus(self, worker: WorkerView) -> Tensor:
        """Return the average, and record how far from it the workers are. Collective.

        Asynchronously it is worker 0's own copy, but for the end.
        """
        if self.asynchronous or worker.state.averaged:
            return worker.params
        return _agreed(worker)


def _mix(x: Tensor, w: dict[int, float], i: int, received: dict[int, Tensor]) -> None:
    """Replace x_i by Σ_j W_ij x_j, always in the same order, so that a seed gives the same bits."""
    x.mul_(w[i])
    for j, x_j in received.items():
        x.add_(x_j, alpha=w[j])


def _agreed(worker: WorkerView) -> Tensor:
    """Return the average of all workers' parameters; note how far from it they are. Collective."""
    import numpy as np

    mean = _mean(worker)
    square = float((worker.params - mean).double().square().sum())
    total = float(worker.comm.sum(np.array([square]))[0])
    distance = (total / worker.comm.size) ** 0.5
    worker.facts.setdefault("consensus_distance", []).append([worker.step, distance])
    return mean


def _mean(worker: WorkerView) -> Tensor:
    """Return the average of all workers' parameters; the same bits on every worker."""
    mean = worker.params / worker.comm.size
    worker.comm.allreduce(mean)
    return mean
