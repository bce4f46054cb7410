"""Gossip: no centre and no all-reduce; every step each worker averages with its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.config.option_declaration import option
from manyhands.strategies.gossip.spec import GossipSpec, Topology
from manyhands.strategies.strategy import Strategy
from manyhands.worker.abilities import Regroupable

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.strategies.strategy import BatchShare, WorkerView
    from manyhands.worker.worker import Worker


@dataclass
class _Received:
    """The neighbours' parameters; and whether the final average is done."""

    params: Tensor  # (neighbours, dim)
    averaged: bool = False


@dataclass(frozen=True)
class Gossip(GossipSpec, Strategy, Regroupable):
    """Decentralised parallel SGD (D-PSGD, Lian et al. 2017, arXiv 1705.09056).

    ```
    each worker i, for t = 0, 1, …:
        overlap:   g_i ← ∇F_i(x_i; ξ_i)  while x_i travels to the neighbours
                   x_i ← Σ_j W_ij x_j − γ g_i
        else:      x_i ← x_i − γ ∇F_i(x_i; ξ_i)                       (adapt)
                   x_i ← Σ_j W_ij x_j                                 (then combine)
    at the end:    x   ← (1/P) Σ_i x_i
    ```

    Asynchronous: AD-PSGD, each worker at its own pace; see `manyhands.strategies.gossip.ad_psgd`.

    x_i: worker i's parameters; ξ_i: its part of the batch; F_i: its mean loss, times P |ξ_i| / |ξ|
    so that the mean of all F_i is the loss of the whole batch ξ; γ: learning rate; W: the mixing
    matrix, symmetric and doubly stochastic, W_ij > 0 only between neighbours; P: workers.

    Guarantees:
        - One worker equals `sequential`, bit for bit.
        - Without overlap, plain SGD on the complete graph equals `sync`, up to rounding.
        - Mixing leaves the average of the workers unchanged; W is checked before the launch.
        - When workers die, the survivors continue from the average of theirs, with a new W.
    Cost per step and worker, for dim numbers of b bytes: d messages of b·dim bytes each to its d
    neighbours (ring: 2, or 1 if P = 2; exponential: at most 2 ⌊log2 P⌋; complete: P − 1;
    pairs: 1); and one all-reduce of dim numbers at the end.
    """

    name: ClassVar[str] = "gossip"
    topology: Topology = option(
        "ring", "who exchanges with whom; pairs: a random matching each step"
    )
    overlap: bool = option(False, "exchange while the gradient is computed")
    asynchronous: bool = option(
        False, "each worker averages with one neighbour at a time, without waiting (AD-PSGD)"
    )

    def __post_init__(self) -> None:
        self.check_options()

    def run(self, worker: Worker) -> None:
        """Train: step and mix with the neighbours, in one order or the other; then average."""
        if self.asynchronous:
            from manyhands.strategies.gossip import ad_psgd

            ad_psgd.run(worker, self.graph(worker.comm.size))
        else:
            super().run(worker)

    def begin(self, worker: WorkerView) -> None:
        """Allocate memory for the neighbours' parameters."""
        x = worker.params
        worker.state = _Received(x.new_empty(len(self._row(worker)) - 1, len(x)))

    def step(self, worker: WorkerView, batch: BatchShare) -> None:
        """Step and mix with the neighbours, in one order or the other."""
        x, i = worker.params, worker.rank
        w = self._row(worker)  # W_ij by j
        received = dict(zip((j for j in w if j != i), worker.state.params, strict=True))
        xi = batch._replace(weight=batch.weight * worker.comm.size)
        if self.overlap:
            arrive = worker.comm.exchange(x, received)
            g = worker.gradient(xi)
            try:
                with worker.exchanging():
                    arrive()
                    _mix(x, w, i, received)
            finally:  # also without a neighbour that has died: the survivors continue from here
                worker.update(g)
        else:
            worker.update(worker.gradient(xi))
            with worker.exchanging():
                worker.comm.exchange(x, received)()
                _mix(x, w, i, received)

    def finish(self, worker: WorkerView) -> None:
        """Give every worker the average."""
        from manyhands.strategies.gossip.consensus import mean

        with worker.exchanging():
            worker.params.copy_(mean(worker))
        worker.state.averaged = True

    def regroup(self, worker: Worker) -> None:
        """Continue from the average of the survivors' models."""
        from manyhands.strategies.gossip.consensus import mean

        worker.params.copy_(mean(worker))

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
        from manyhands.strategies.gossip.consensus import record_mean

        return record_mean(worker)


def _mix(x: Tensor, w: dict[int, float], i: int, received: dict[int, Tensor]) -> None:
    """Replace x_i by Σ_j W_ij x_j, always in the same order, so that a seed gives the same bits."""
    x.mul_(w[i])
    for j, x_j in received.items():
        x.add_(x_j, alpha=w[j])
