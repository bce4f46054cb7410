"""signSGD: each worker votes on the sign of every number of the gradient.

Try it: `manyhands train --strategy examples/strategies/sign_sgd.py:SignSGD --lr 0.001`
"""

from __future__ import annotations

from dataclasses import dataclass

import manyhands as mh
from manyhands.strategies import Cost, Supports


@dataclass(frozen=True)
class SignSGD(mh.Strategy):
    """signSGD with majority vote: workers send signs, and follow the sign of the majority.

    Bernstein, Wang, Azizzadenesheli & Anandkumar 2018, arXiv 1802.04434.

    ```
    each worker i, for t = 0, 1, 2, …:
        g_i ← ∇f_i(x)
        V   ← Σ_j sign(g_j)                  (all-reduce)
        x   ← x − η sign(V)
    ```

    x: parameters, the same on all workers; f_i: mean loss of worker i's batch; V: the vote; η:
    learning rate, which is also how far each parameter moves: use a small one. A tie moves nothing.

    Guarantees: all workers hold the same parameters, bit for bit; it has no state beside them and
    the optimizer's, so a run can resume without any code for it.
    Cost per step: one all-reduce; signs travel as floating-point numbers, so it saves no bytes.
    """

    supports = Supports(identical=True, resume=True, torch=True, cuda=True, join=True)

    def step(self, worker, batch):
        vote = worker.gradient(batch.alone()).sign_()
        worker.allreduce(vote)
        worker.update(vote.sign_())

    def consensus(self, worker):
        return worker.params

    def cost(self, workers):
        return Cost(allreduces=1)
