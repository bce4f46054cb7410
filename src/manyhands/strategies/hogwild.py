"""Hogwild: all workers write to one vector in shared memory, and nobody waits for anybody."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, cast

from manyhands.errors import ConfigError
from manyhands.optimizers import SGD, Adam, AdamW
from manyhands.strategies import staleness
from manyhands.strategies.strategy import Strategy, Supports

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm.memory import MemoryGroup
    from manyhands.worker import Worker


@dataclass(frozen=True)
class Hogwild(Strategy):
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
    waiting.

    Guarantees:
        - One worker equals `sequential`, bit for bit.
        - Every example is seen once an epoch, each worker in an order of its own.
        - Staleness is counted in slots, one writer each: exact up to updates that are under way.
    Cost per step: no messages. One pass over x to read and one to write, through the caches.
    """

    name: ClassVar[str] = "hogwild"
    supports: ClassVar[Supports] = Supports(
        many=True,
        whole_batches=True,
        together=False,
        identical=False,
        partition="random-partition",
        deterministic=False,
        shares_memory=True,
        private=True,
    )

    lock: bool = field(
        default=False, metadata={"help": "let one worker at a time read or write (for comparison)"}
    )
    shared_state: bool = field(
        default=False, metadata={"help": "share momentum or Adam's moments, not only parameters"}
    )

    def run(self, worker: Worker) -> None:
        """Train: read, compute, write, all in one vector that everybody else uses too."""
        import torch

        memory = cast("MemoryGroup", worker.comm)
        if self.shared_state:
            _share_state(worker, memory)
        x = worker.state = memory.share(worker.params)  # (dim,)
        writes = memory.share(torch.zeros(memory.size, dtype=torch.int64)).numpy()
        stop = memory.share(torch.zeros(1, dtype=torch.int64)).numpy()
        if not self.lock:
            _live_in(worker, x)
        taus: Counter[int] = Counter()
        for batch in worker.batches():
            with memory.lock() if self.lock else nullcontext():
                seen = writes.sum()
                if self.lock:
                    worker.params.copy_(x)
            g = worker.gradient(batch)
            with memory.lock() if self.lock else nullcontext():
                taus[int(writes.sum() - seen)] += 1
                if self.lock:
                    worker.params.copy_(x)
                worker.update(g)
                if self.lock:
                    x.copy_(worker.params)
                writes[worker.rank] += 1
            if stop[0]:
                worker.stopped = "target_accuracy"
        stop[0] |= worker.stopped == "target_accuracy"
        everyones = memory.gather(sorted(taus.items()))
        worker.replica.move(x)
        worker.facts["staleness"] = staleness.describe(Counter(dict(each)) for each in everyones)

    def consensus(self, worker: Worker) -> Tensor:
        """Return the vector that all share."""
        return cast("Tensor", worker.state)


def _live_in(worker: Worker, x: Tensor) -> None:
    """Let the model and the optimizer work on `x` itself."""
    worker.replica.move(x)
    for group in worker.optimizer.param_groups:
        for p in group["params"]:
            start = p.storage_offset()
            p.data = x[start : start + p.numel()].view(p.shape)


def _share_state(worker: Worker, memory: MemoryGroup) -> None:
    """Share what the optimizer remembers; for ours it begins with zeros."""
    import torch

    optimizer = worker.optimizer
    params = worker.params.clone()
    worker.replica.grad.zero_()
    optimizer.step()  # a step along nothing makes the state
    worker.params.copy_(params)
    tensors = [
        (state, name, value)
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    ]
    if not tensors or not isinstance(worker.config.optimizer, SGD | Adam | AdamW):
        raise ConfigError(
            "shared_state is given, but this optimizer has no state that can be shared; expected "
            "adam, adamw, or sgd with momentum"
        )
    for state, name, value in tensors:
        state[name] = memory.share(value.zero_())
