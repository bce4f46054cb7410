"""Hogwild: all workers update one vector in shared memory, without waiting for each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from manyhands.config.optimizers import SGD, Adam, AdamW
from manyhands.config.option_declaration import option
from manyhands.strategies.staleness import describe_staleness
from manyhands.strategies.strategy import Scaling, Strategy, Supports
from manyhands.worker.abilities import Asynchronous

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from manyhands.config.run import RunConfig
    from manyhands.strategies.hogwild.shared_vector import SharedVector
    from manyhands.worker.worker import Worker


@dataclass(frozen=True)
class Hogwild(Strategy, Asynchronous):
    """Lock-free parallel SGD (Recht et al. 2011, arXiv 1106.5730).

    ```
    each worker k, for each of its batches e:
        read x̂ from x                     (others may write meanwhile)
        g ← ∇f_e(x̂)
        x ← x − γ g                       (component by component, no lock)
    ```

    x: the parameters, one vector in shared memory; x̂: what worker k saw of it, stale by τ updates
    of others; f_e: mean loss of batch e; γ: learning rate (the optimizer's update); P: workers.

    Momentum and Adam's moments belong to each worker; with `shared_state` they are shared like x.
    With `lock` workers read and write x one at a time: x̂ is a state that x was in, at the price of
    waiting. On a GPU, which all workers must share, x is in its memory.

    Guarantees:
        - One worker equals `sequential`, bit for bit.
        - Every example is seen once an epoch, each worker in an order of its own.
        - Staleness is counted in slots, one writer each: exact up to updates that are under way.
        - A checkpoint is written when all have ended their step: nobody's update is half in it.
    Cost per step: no messages. One pass over x to read and one to write, through the caches.
    """

    name: ClassVar[str] = "hogwild"
    supports: ClassVar[Supports] = Supports(
        whole_batches=True,
        together=False,
        partition="random-partition",
        deterministic=False,
        shares_memory=True,
        cuda=True,
        private=True,
        resume=True,
        lacks={"sync_batchnorm": "has workers that do not step together"},
    )

    lock: bool = option(False, "one worker at a time reads or writes, for comparison")
    shared_state: bool = option(False, "share momentum or Adam's moments as well as parameters")

    @property
    def lr_scaling(self) -> Scaling:
        """Divided by the workers: an update is stale by those of all others."""
        return "inverse"

    def on_gpu(self, config: RunConfig) -> bool:
        """Say whether the optimizer can step x while the model is in x̂: ours hold neither."""
        return isinstance(config.optimizer, SGD | Adam | AdamW)

    def run(self, worker: Worker) -> None:
        """Train: read, compute, write, all in one vector that every other worker uses, too."""
        from manyhands.strategies.hogwild.shared_vector import SharedVector

        shared = SharedVector(worker, lock=self.lock, shared_state=self.shared_state)
        x, own, turn, taus = shared.x, shared.own, shared.turn, shared.taus
        copies, writes_back, writes = shared.copies, shared.writes_back, shared.writes
        for batch in worker.batches():
            with turn():
                seen = writes.sum()
                if copies:  # x̂; otherwise the model reads x itself
                    own.copy_(x)
            g = worker.gradient(batch)
            with turn():
                taus[int(writes.sum() - seen)] += 1
                if writes_back:
                    own.copy_(x)
                worker.update(g)
                if writes_back:
                    x.copy_(own)
                writes[worker.rank] += 1
                shared.examples[worker.rank] += batch.examples
        shared.barrier.leave()
        counts = worker.comm.gather(sorted(taus.items()))
        worker.facts["staleness"] = describe_staleness(Counter(dict(each)) for each in counts)
        shared.release()

    def consensus(self, worker: Worker) -> Tensor:
        """Return the vector that all share."""
        return cast("Tensor", worker.state.x)

    def progress(self, worker: Worker) -> tuple[int, float]:
        """Return the updates of all workers in the shared vector, per worker."""
        shared: SharedVector = worker.state
        return shared.steps, float(shared.examples.sum())

    def pause(self, worker: Worker) -> None:
        """Meet the others for a checkpoint, if one is due."""
        shared: SharedVector = worker.state
        shared.barrier.attend(shared.steps)

    def state(self, worker: Worker) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the staleness so far, and x where the worker's own copy differs."""
        shared: SharedVector = worker.state
        x = {"x": shared.x} if shared.copies else {}
        return x, {"taus": sorted(shared.taus.items())}

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Take back the staleness, for `run` to continue with, and x."""
        worker.state = Counter({int(tau): n for tau, n in numbers["taus"]})
        if "x" in tensors:
            worker.params.copy_(tensors["x"])
