"""SCAFFOLD: local steps, corrected for what each worker's data lacks.

Try it: `manyhands train --strategy examples/strategies/scaffold.py:SCAFFOLD --partition by-label`
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import manyhands as mh
from manyhands.strategies import Checkpointable, Cost, option, whole


@dataclass(frozen=True)
class SCAFFOLD(mh.Strategy, Checkpointable):
    """Local SGD with control variates, which correct the drift of workers with different data.

    Karimireddy et al. 2020, arXiv 1910.06378: option II, all clients take part, η_g = 1.

    ```
    each worker i, with y_i = x and c = c_i = 0 at first, in each round:
        K times:  y_i ← y_i − η (g_i(y_i) − c_i + c)
        c_i⁺ ← c_i − c + (x − y_i) / (K η)
        x    ← (1/P) Σ_j y_j;   c ← (1/P) Σ_j c_j⁺      (all-reduce)
        y_i  ← x;   c_i ← c_i⁺
    ```

    x: parameters of the server, here of all workers after a round; y_i: worker i's; g_i: gradient
    of its batch; c_i: its control variate; c: their mean; K: local steps; η: learning rate; P:
    workers. (x − y_i) / (K η) is the mean of g_i − c_i + c over the round, so c_i⁺ is the mean of
    g_i, and is calculated so: it needs no η.

    Guarantees: with one worker and K = 1 it is `sequential`; a resumed run has the same bits.
    Cost per step: two all-reduces of the parameters every K steps.
    """

    local_steps: int = option(10, "local steps of a round, the K of SCAFFOLD", whole(1, 10**9))

    def begin(self, worker):
        if worker.state is None:
            worker.state = {n: torch.zeros_like(worker.params) for n in ("c", "c_i", "sum")}

    def step(self, worker, batch):
        s, K = worker.state, self.local_steps
        g = worker.gradient(batch.alone())
        mine = g[: s["c"].numel()]  # a loop of your own (mh.join) has more numbers behind
        s["sum"] += mine
        mine += s["c"] - s["c_i"]
        worker.update(g)
        if (worker.step + 1) % K == 0:
            s["c_i"] = s["sum"] / K
            with worker.exchanging():
                worker.params.copy_(self.mean(worker, worker.params))
                s["c"] = self.mean(worker, s["c_i"])
            s["sum"].zero_()

    def mean(self, worker, vector):
        mean = vector / worker.comm.size
        worker.comm.allreduce(mean)
        return mean

    def consensus(self, worker):
        return self.mean(worker, worker.params)

    def state(self, worker):
        return worker.state, {}

    def restore(self, worker, tensors, numbers):
        worker.state = {name: tensors[name].to(worker.params.device) for name in tensors}

    def cost(self, workers):
        return Cost(allreduces=2 / self.local_steps, every=self.local_steps)
