"""EASGD: workers explore on their own, held by springs to a common centre.

Try it: `manyhands train --strategy examples/strategies/easgd.py:EASGD --alpha 0.2`
"""

from __future__ import annotations

from dataclasses import dataclass

import manyhands as mh
from manyhands.strategies import Checkpointable, Cost, option, whole


@dataclass(frozen=True)
class EASGD(mh.Strategy, Checkpointable):
    """Elastic averaging SGD: springs hold the workers' models to a common centre.

    Zhang, Choromanska & LeCun 2015, arXiv 1412.6651, the synchronous form.

    ```
    each worker i, for t = 0, 1, 2, …:
        if τ divides t:
            x_i ← x_i − α (x_i − c)
            c   ← c + α Σ_j (x_j − c)        (all-reduce; both sides use the old x and c)
        x_i ← x_i − η ∇f_i(x_i)
    ```

    x_i: parameters of worker i; c: the centre x̃, which is evaluated; α = η ρ: the elastic force;
    τ: communication period; f_i: mean loss of the worker's batch; η: learning rate; P: workers.
    It is stable for P α below 1.

    Guarantees: all workers hold the same centre, bit for bit; a resumed run has the same bits.
    Cost per step: one all-reduce of the parameters every τ steps.
    """

    alpha: float = option(0.2, "elastic force, the α of EASGD")
    tau: int = option(4, "steps between two exchanges, the τ of EASGD", whole(1, 10**9))

    def begin(self, worker):
        if worker.state is None:  # a resumed run has its centre already
            worker.state = worker.params.clone()

    def step(self, worker, batch):
        x, centre = worker.params, worker.state
        if worker.step % self.tau == 0:
            pull = self.alpha * (x - centre)
            x -= pull
            worker.allreduce(pull)
            centre += pull
        worker.update(worker.gradient(batch.alone()))

    def consensus(self, worker):
        return worker.state

    def state(self, worker):
        return {"centre": worker.state}, {}

    def restore(self, worker, tensors, numbers):
        worker.state = tensors["centre"].to(worker.params.device)

    def cost(self, workers):
        return Cost(allreduces=1 / self.tau, every=self.tau)
