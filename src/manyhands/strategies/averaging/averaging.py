"""Averaging: every worker trains alone on its own part; weights are averaged, once or regularly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.config.declare import AMOUNT, check_declared, option
from manyhands.strategies.averaging.mean import (
    Since,
    average_survivors,
    evaluate_own_models,
    moments,
    weighted_mean,
)
from manyhands.strategies.averaging.spec import AveragingSpec, Fate, Unit
from manyhands.strategies.strategy import Strategy
from manyhands.strategies.sync.sync import AllReduce
from manyhands.worker.abilities import Checkpointable, Regroupable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from manyhands.strategies.strategy import BatchShare, WorkerView
    from manyhands.worker.worker import Worker


@dataclass(frozen=True)
class Averaging(AveragingSpec, Strategy, Checkpointable, Regroupable):
    """Parallel SGD by averaging weights (PSGD, Zinkevich et al. 2010; local SGD, Stich 2019).

    ```
    each worker k, on its own shard, for t = 1, 2, …:
        w_k ← w_k − η ∇f_{B_k}(w_k)
        if H divides t:  w_k ← Σ_j (n_j / n) w_j         (all-reduce)
    at the end:          w   ← Σ_j (n_j / n) w_j
    ```

    w_k: worker k's parameters; B_k: its batch, batch_size / P examples; f: mean loss; η: learning
    rate; H: the period (none: only at the end, which is PSGD); n_k: examples that worker k has seen
    since the last averaging; n = Σ_k n_k; P: workers.

    Guarantees:
        - One worker equals `sequential` on the same partition, bit for bit.
        - H = 1 with plain SGD equals `sync`, up to rounding, whatever the workers' shares.
        - After an averaging all replicas are bit-identical.
        - When workers die, the others meet at once and go on from the average of theirs.
    Cost per step: no messages; each H steps one all-reduce of dim numbers (and of as many again for
    each moment of the optimizer that is averaged), and one at the end.
    """

    name: ClassVar[str] = "averaging"
    period: int | None = option(
        None, "steps or epochs between averages; by default one average at the end", AMOUNT
    )
    period_unit: Unit = option("steps", "unit of period")
    average_optimizer: Fate = option("keep", "what happens to momentum when weights are averaged")
    allreduce: AllReduce = option("auto", "how vectors are summed; auto picks by size and group")

    def __post_init__(self) -> None:
        check_declared(self)
        self.check_options()

    def run(self, worker: Worker) -> None:
        """Train alone, average every period and at the end; then evaluate each own model."""
        self.begin(worker)
        worker.state.unit = 1 if self.period_unit == "steps" else worker.plan.steps(1)
        for batch in worker.batches():
            self.step(worker, batch)
        self.finish(worker)
        evaluate_own_models(worker)

    def begin(self, worker: WorkerView) -> None:
        """Start counting."""
        worker.state = worker.state or Since(0, 0, worker.params.clone())

    def step(self, worker: WorkerView, batch: BatchShare) -> None:
        """Step alone; at the end of a period, meet."""
        since: Since = worker.state
        worker.update(worker.gradient(batch.alone()))
        since.own += batch.examples
        since.total += batch.total
        if self.period and (worker.step + 1) % (self.period * since.unit) == 0:
            self._average(worker)

    def finish(self, worker: WorkerView) -> None:
        """Meet for the last time, unless all have just met."""
        if worker.state.total:
            self._average(worker)

    def state(self, worker: Worker) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return what happened since the last averaging."""
        since: Since = worker.state
        return {"before": since.before}, {"own": since.own, "total": since.total}

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Take back what happened since the last averaging."""
        before = tensors["before"].to(worker.params.device)
        worker.state = Since(numbers["own"], numbers["total"], before)

    def consensus(self, worker: WorkerView) -> Tensor:
        """Return the average, weighted by examples; nobody's own parameters change. Collective."""
        if worker.state.total == 0:
            return worker.params
        return weighted_mean(worker, worker.params, self.allreduce)

    def regroup(self, worker: Worker) -> None:
        """Average now, over the survivors."""
        average_survivors(worker, self.allreduce)

    def _average(self, worker: WorkerView) -> None:
        """Give every worker the average, and its optimizer what it is to go on with."""
        since: Since = worker.state
        since.before.copy_(worker.params)
        kept = self.average_optimizer != "average"
        vectors = [worker.params, *([] if kept else moments(worker.optimizer))]
        with worker.exchanging():
            means = [weighted_mean(worker, vector, self.allreduce) for vector in vectors]
        for vector, mean in zip(vectors, means, strict=True):
            vector.copy_(mean)
        if self.average_optimizer == "reset":
            worker.optimizer.state.clear()
        since.own = since.total = 0
        since.met += 1
