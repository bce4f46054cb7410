"""SlowMo: averaging every few steps, with momentum on what the averages moved.

Try it: `manyhands train --strategy examples/strategies/slowmo.py:SlowMo --beta 0.5`
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import manyhands as mh
from manyhands.strategies import Checkpointable, Cost, Range, option, whole


@dataclass(frozen=True)
class SlowMo(mh.Strategy, Checkpointable):
    """Slow momentum: local SGD, and momentum on the progress of the workers' average.

    Wang, Tantia, Ballas & Rabbat 2020, arXiv 1910.00643.

    ```
    for t = 0, 1, 2, …, with x_0 and u = 0 on all workers:
        each worker i:  x_i ← x_t;  do τ steps  x_i ← x_i − η ∇f_i(x_i)
        x̄       ← (1/P) Σ_i x_i                  (all-reduce)
        u       ← β u + (x_t − x̄) / γ
        x_{t+1} ← x_t − α γ u
    ```

    x_t: the parameters after t rounds; u: slow momentum; τ: steps of a round; β: slow momentum
    factor; α: slow learning rate; η: the fast learning rate, γ = η; f_i: mean loss of worker i's
    batch; P: workers. With a constant γ it cancels, so u here is γ times the paper's.

    Guarantees: β = 0 and α = 1 is local SGD with period τ; a resumed run has the same bits.
    Cost per step: one all-reduce of the parameters every τ steps.
    """

    tau: int = option(8, "steps of a round, the τ of SlowMo", whole(1, 10**9))
    beta: float = option(
        0.5, "slow momentum, the β of SlowMo", Range(0, 1, whole=False, below=True)
    )
    slow_rate: float = option(1.0, "slow learning rate, the α of SlowMo")

    def begin(self, worker):
        if worker.state is None:
            worker.state = {"x": worker.params.clone(), "u": torch.zeros_like(worker.params)}

    def step(self, worker, batch):
        worker.update(worker.gradient(batch.alone()))
        if (worker.step + 1) % self.tau == 0:
            x, u = worker.state["x"], worker.state["u"]
            with worker.exchanging():
                u.mul_(self.beta).add_(x - self.mean(worker, worker.params))
            x.sub_(u, alpha=self.slow_rate)
            worker.params.copy_(x)

    def mean(self, worker, vector):
        mean = vector / worker.comm.size
        worker.comm.allreduce(mean)
        return mean

    def consensus(self, worker):
        return self.mean(worker, worker.params)

    def state(self, worker):
        return worker.state, {}

    def restore(self, worker, tensors, numbers):
        worker.state = {name: tensors[name].to(worker.params.device) for name in ("x", "u")}

    def cost(self, workers):
        return Cost(allreduces=1 / self.tau, every=self.tau)
