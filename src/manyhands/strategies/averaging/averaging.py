"""Averaging: every worker trains alone on its own part; weights are averaged, once or regularly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.config.all_reduces import all_reduce_option
from manyhands.config.option_declaration import check_declared, option
from manyhands.strategies.averaging import mean, rounds, streaming
from manyhands.strategies.averaging.mean import Since
from manyhands.strategies.averaging.spec import PERIOD, AveragingSpec, Fate, Unit
from manyhands.strategies.strategy import Strategy
from manyhands.worker.abilities import Checkpointable, Regroupable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from manyhands.strategies.strategy import BatchShare, WorkerView
    from manyhands.worker.worker import Worker


@dataclass(frozen=True, repr=False)
class Averaging(AveragingSpec, Strategy, Checkpointable, Regroupable):
    """Averages weights (PSGD, Zinkevich et al. 2010; local SGD, Stich 2019; DiLoCo, 2311.08105).

    ```
    each worker k, on its own shard, for t = 1, 2, …:
        w_k ← w_k − η ∇f_{B_k}(w_k)
        if H divides t:
            without OuterOpt:  w_k ← Σ_j (n_j / n) w_j            (all-reduce)
            with OuterOpt:     Δ   ← Σ_j (n_j / n) (θ − w_j)      (all-reduce)
                               θ   ← OuterOpt(θ, Δ);  w_k ← θ
    at the end:                w   ← Σ_j (n_j / n) w_j
    ```

    w_k: worker k's parameters; B_k: its batch, batch_size / P examples; f: mean loss; η: learning
    rate; H: the period (none: only at the end, which is PSGD); n_k: examples that worker k has seen
    since the last averaging; n = Σ_k n_k; P: workers; θ: the parameters that all have in common;
    OuterOpt: SGD with Nesterov momentum, or Adam (`outer_optimizer.py`). Inner optimizers stay as
    they are. With fragments, parts of θ take turns; with a delay D, a part of θ is updated D steps
    after its Δ was sent, and then w_k ← α w_k + (1 − α) θ (Streaming DiLoCo, arXiv 2501.18512).

    Guarantees:
        - One worker equals `sequential` on the same partition, bit for bit, without OuterOpt.
        - H = 1 with plain SGD equals `sync`, up to rounding, whatever the workers' shares.
        - Outer SGD with rate 1 and no momentum equals no OuterOpt, up to rounding.
        - After an averaging all replicas are bit-identical; θ and outer momentum always are.
        - When workers die, the others meet at once and go on from the average of theirs.
    Cost per step: no messages; each H steps one all-reduce of dim numbers (and of as many again for
    each moment of the optimizer that is averaged), and one at the end. With another precision or a
    delay: 2 (P − 1) messages of together 2 (P − 1) / P times dim numbers' bytes in that precision.
    """

    name: ClassVar[str] = "averaging"
    period: int | None = option(
        None, "steps, epochs or seconds between averages; by default one average at the end", PERIOD
    )
    period_unit: Unit = option("steps", "unit of period")
    average_optimizer: Fate = option("keep", "what happens to momentum when weights are averaged")
    allreduce: str = all_reduce_option("vectors are")

    def __post_init__(self) -> None:
        check_declared(self)
        self.check_options()

    def run(self, worker: Worker) -> None:
        """Train alone, average every period and at the end; then evaluate each own model."""
        self.begin(worker)
        worker.state.unit = worker.plan.steps(1) if self.period_unit == "epochs" else 1
        for batch in worker.batches():
            self.step(worker, batch)
        self.finish(worker)
        mean.evaluate_own_models(worker)

    def begin(self, worker: WorkerView) -> None:
        """Start counting."""
        worker.state = worker.state or rounds.start(self, worker.params)

    def step(self, worker: WorkerView, batch: BatchShare) -> None:
        """Step alone; at the end of a period, meet."""
        since: Since = worker.state
        worker.update(worker.gradient(batch.alone()))
        since.own += batch.examples
        since.total += batch.total
        t = worker.step + 1
        if since.stream:
            streaming.after_step(self, worker, t)
        elif rounds.ends_period(self, since, t):
            with rounds.meeting(self, worker, t):
                (rounds.outer_step if since.outer else mean.average)(self, worker)

    def finish(self, worker: WorkerView) -> None:
        """Meet for the last time, unless all have just met."""
        if worker.state.stream:
            streaming.gather_copies(worker, self.allreduce)
        elif worker.state.total:
            mean.average(self, worker)
        if outer := worker.state.outer:
            worker.facts["outer"] = outer.facts()

    def state(self, worker: Worker) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what happened since the last averaging, θ, and outer momentum."""
        return rounds.state(worker)

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Take back what `state` returned."""
        worker.state = rounds.restore(self, worker, tensors, numbers)

    def consensus(self, worker: WorkerView) -> Tensor:
        """Return the average, weighted by examples; nobody's own parameters change. Collective."""
        if worker.state.stream:
            return streaming.mean_of_copies(worker, self.allreduce)
        if worker.state.total == 0:
            return worker.params
        return mean.weighted_mean(worker, worker.params, self.allreduce)

    def regroup(self, worker: Worker) -> None:
        """Average now, over the survivors."""
        if worker.state.outer:
            rounds.regroup(worker, self.allreduce)
        else:
            mean.average_survivors(worker, self.allreduce)
