"""Asynchronous decentralised parallel SGD (AD-PSGD, Lian et al. 2018, arXiv 1710.06952).

```
each worker i, at its own pace:
    g_i ← ∇F_i(x̂_i; ξ_i)  while an even i averages with a neighbour j that it chooses:
               x_i, x_j ← (x_i + x_j) / 2                         (a thread of j answers)
    x_i ← x_i − γ g_i
at the end:    x   ← (1/P) Σ_i x_i
```

x̂_i: x_i as it was when the gradient was begun; the other symbols are those of `Gossip`.

Guarantees:
    - Every average of two leaves the average of all workers unchanged.
    - No worker waits for another's gradient: even workers ask odd ones only, so that none waits for
      one that waits.
Cost per step of an even worker: one message of b·dim bytes to the chosen neighbour, and one back.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from manyhands.comm.messages import Messages, Parcel
from manyhands.data.shuffle import draws
from manyhands.strategies.gossip.consensus import record_mean
from manyhands.strategies.gossip.responder import AVERAGE, DONE, OVER, Responder
from manyhands.strategies.staleness import describe_staleness
from manyhands.worker.evaluation_gate import MessageGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.strategies.gossip.topology import Graph
    from manyhands.worker.worker import Worker


def run(worker: Worker, graph: Graph) -> None:
    """Train this worker at its own pace, then average with all others."""
    facts = worker.comm.gather(train(worker, graph))
    counts = [Counter(dict(each.pop("taus"))) for each in facts]
    worker.facts |= {name: [each[name] for each in facts] for name in facts[0]}
    worker.facts["staleness"] = describe_staleness(counts)
    worker.params.copy_(record_mean(worker))


def train(worker: Worker, graph: Graph) -> dict[str, Any]:
    """Do all steps of this worker; returns its facts.

    `taus` counts its updates by staleness: how many averages have moved x_i since x̂_i was read.
    """
    neighbours = graph[worker.rank]
    if worker.rank % 2 and neighbours:
        return _train_and_answer(worker, neighbours)
    return _train_and_ask(worker, neighbours)


def _train_and_ask(worker: Worker, neighbours: Sequence[int]) -> dict[str, Any]:
    """Average with a chosen neighbour while the gradient is computed."""
    x, messages = worker.params, Messages(worker.comm)
    mine, theirs = Parcel(x), Parcel(x)
    worker.evaluation.gate = gate = MessageGate.if_needed(worker, messages)
    asked = 0
    for batch in worker.batches():
        requests = []
        if neighbours:
            key = (worker.config.seed, worker.rank, worker.step, "pairing")
            j = neighbours[int(draws(1, len(neighbours), *key)[0])]
            mine.header[0] = AVERAGE
            mine.body.copy_(x)
            requests = [messages.receive(theirs, j), messages.send(mine, j)]
        g = worker.gradient(batch._replace(weight=batch.weight * worker.comm.size))
        if neighbours:
            with worker.exchanging():
                messages.wait_all(requests)
                x.add_(theirs.body).mul_(0.5)
            asked += 1
            worker.comm.meter.add(
                "average", payload=x.nbytes, sent=mine.nbytes, messages=1, seconds=0.0
            )
        worker.update(g)
        if theirs.header[0] == OVER:
            worker.training.stopped = "target_accuracy"
    mine.header[0] = OVER if worker.training.early else DONE
    messages.wait_all([messages.send(mine, j) for j in neighbours])
    if gate:
        gate.end()
    tau = 1 if neighbours else 0  # one average within each gradient
    return {"asked": asked, "answered": 0, "taus": [(tau, worker.step)]}


def _train_and_answer(worker: Worker, neighbours: Sequence[int]) -> dict[str, Any]:
    """Let a thread average with the neighbours that ask while gradients are computed."""
    shared = Responder(worker, neighbours)
    worker.evaluation.gate = shared.gate
    shared.start()
    taus: Counter[int] = Counter()
    for batch in worker.batches():
        with shared.lock:
            worker.params.copy_(shared.x)  # what the gradient is computed at: it must not move
            seen = shared.answered
        g = worker.gradient(batch._replace(weight=batch.weight * worker.comm.size))
        with shared.lock:
            worker.params.copy_(shared.x)
            worker.update(g)
            shared.x.copy_(worker.params)
            taus[shared.answered - seen] += 1
        if shared.over:
            worker.training.stopped = "target_accuracy"
        shared.check()
    shared.join()
    shared.check()
    worker.params.copy_(shared.x)
    return {"asked": 0, "answered": shared.answered, "taus": [*taus.items()]}
