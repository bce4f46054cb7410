"""Averaging: every worker trains alone on its own part; weights are averaged, once or regularly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from manyhands import validate
from manyhands.config.declare import AMOUNT, check_declared, option
from manyhands.errors import ConfigError
from manyhands.strategies.strategy import Scaling, Strategy, Supports
from manyhands.strategies.sync.sync import AllReduce
from manyhands.worker.abilities import Checkpointable, Regroupable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from manyhands.strategies.strategy import BatchShare, WorkerView
    from manyhands.worker.worker import Worker

Unit = Literal["steps", "epochs"]
Fate = Literal["keep", "average", "reset"]


@dataclass
class _Since:
    """What happened since the last averaging: n_k and n, and w_k as it was just before it."""

    own: float
    total: float
    before: Tensor  # (dim,)
    unit: int = 1  # steps that the period counts as one
    met: int = 0  # averagings so far


@dataclass(frozen=True)
class Averaging(Strategy, Checkpointable, Regroupable):
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
    supports: ClassVar[Supports] = Supports(
        partition="random-partition",
        resume=True,
        outlives=True,
        torch=True,
        cuda=True,
        private=True,
        join=True,
        lacks={"sync_batchnorm": "gives every worker a model and statistics of its own"},
    )

    period: int | None = option(
        None, "average every so many; by default only once, at the end", AMOUNT
    )
    period_unit: Unit = option("steps", "what the period counts")
    average_optimizer: Fate = option("keep", "what becomes of momentum when weights are averaged")
    allreduce: AllReduce = option("auto", "how vectors are summed; auto picks by size and group")

    def __post_init__(self) -> None:
        check_declared(self)
        validate.one_of(get_args(Unit), period_unit=self.period_unit)
        validate.one_of(get_args(Fate), average_optimizer=self.average_optimizer)
        validate.one_of(get_args(AllReduce), allreduce=self.allreduce)
        for name, value in (("period_unit", "steps"), ("average_optimizer", "keep")):
            if self.period is None and getattr(self, name) != value:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r} without a period, and would be ignored; "
                    f"give a period, or leave {name} out"
                )

    @property
    def lr_scaling(self) -> Scaling:
        """Divided by the workers, who drift apart, unless they meet every so many steps."""
        return "none" if self.period and self.period_unit == "steps" else "inverse"

    def run(self, worker: Worker) -> None:
        """Train alone, meet every period and at the end, and record what that last meeting did."""
        self.begin(worker)
        worker.state.unit = 1 if self.period_unit == "steps" else worker.plan.steps(1)
        for batch in worker.batches():
            self.step(worker, batch)
        self.finish(worker)
        self._judge(worker)

    def check_join(self) -> None:
        """Refuse epochs as a unit: how long they are only the user's loop knows."""
        if self.period_unit == "epochs":
            raise ConfigError(
                "period_unit is 'epochs', whose length only your own loop knows; expected steps"
            )

    def begin(self, worker: WorkerView) -> None:
        """Start counting."""
        worker.state = worker.state or _Since(0, 0, worker.params.clone())

    def step(self, worker: WorkerView, batch: BatchShare) -> None:
        """Step alone; at the end of a period, meet."""
        since: _Since = worker.state
        worker.update(worker.gradient(batch._replace(weight=1.0)))
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
        since: _Since = worker.state
        return {"before": since.before}, {"own": since.own, "total": since.total}

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Take back what happened since the last averaging."""
        before = tensors["before"].to(worker.params.device)
        worker.state = _Since(numbers["own"], numbers["total"], before)

    def consensus(self, worker: WorkerView) -> Tensor:
        """Return the average, weighted by examples; nobody's own parameters change. Collective."""
        if worker.state.total == 0:
            return worker.params
        return self._mean(worker, worker.params)

    def regroup(self, worker: Worker) -> None:
        """Meet; who missed the last averaging takes over its result, in which its own work is."""
        import numpy as np

        since: _Since = worker.state
        last = int(worker.comm.maximum(np.array([since.met]))[0])
        weight = since.own if since.met == last else 0.0
        if worker.comm.sum(np.array([weight]))[0] == 0:
            weight = float(since.met == last)  # nobody has done anything since
        since.own, since.total = weight, float(worker.comm.sum(np.array([weight]))[0])
        worker.params.copy_(self._mean(worker, worker.params))
        since.own, since.total, since.met = 0, 0, last + 1

    def _mean(self, worker: WorkerView, vector: Tensor) -> Tensor:
        """Return the average over the workers, by the examples since the last averaging."""
        since: _Since = worker.state
        mean = vector * (since.own / since.total)
        worker.comm.allreduce(mean, self.allreduce)
        return mean

    def _average(self, worker: WorkerView) -> None:
        """Give every worker the average, and its optimizer what it is to go on with."""
        since: _Since = worker.state
        since.before.copy_(worker.params)
        kept = self.average_optimizer != "average"
        vectors = [worker.params, *([] if kept else _moments(worker.optimizer))]
        with worker.exchanging():
            means = [self._mean(worker, vector) for vector in vectors]
        for vector, mean in zip(vectors, means, strict=True):
            vector.copy_(mean)
        if self.average_optimizer == "reset":
            worker.optimizer.state.clear()
        since.own = since.total = 0
        since.met += 1

    def _judge(self, worker: Worker) -> None:
        """Record how each worker's own model did just before the last averaging, and the average.

        The average has been judged already: it is what the last evaluation looked at.
        """
        from manyhands.worker.evaluation import evaluate

        with worker.evaluating():
            own = evaluate(worker, worker.state.before, worker.data.test, alone=True)
            losses, metrics = zip(*worker.comm.gather(list(own)), strict=True)
        last = worker.course.epochs[-1]
        worker.facts |= {
            "own_loss": list(losses),
            "own_accuracy": [each.get("accuracy") for each in metrics],
            "own_metrics": list(metrics),
            "average_loss": last.test_loss,
            "average_accuracy": last.test_metrics.get("accuracy"),
            "average_metrics": last.test_metrics,
        }


def _moments(optimizer: Optimizer) -> list[Tensor]:
    """Return what the optimizer remembers of each parameter, in an order that all workers share."""
    import torch

    values = [value for state in optimizer.state.values() for value in state.values()]
    return [v for v in values if isinstance(v, torch.Tensor) and v.ndim and v.is_floating_point()]
