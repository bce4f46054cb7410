"""Hogwild: all workers write to one vector in shared memory, and nobody waits for anybody."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from manyhands.config.declare import option
from manyhands.config.optimizers import SGD, Adam, AdamW
from manyhands.errors import ConfigError
from manyhands.strategies import staleness
from manyhands.strategies.hogwild.checkpoint import Meeting
from manyhands.strategies.strategy import Scaling, Strategy, Supports
from manyhands.worker.abilities import Asynchronous

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from torch import Tensor
    from torch.optim import Optimizer

    from manyhands.comm.memory import MemoryGroup
    from manyhands.config.run import RunConfig
    from manyhands.worker.worker import Worker


@dataclass
class _Shared:
    """What the workers share, and what one of them counts.

    Attributes:
        x: The parameters; shape (dim,).
        writes: The updates of each worker so far; shape (P,). Each writes its own.
        examples: Behind these; shape (P,).
        meeting: Where they meet for checkpoints.
        taus: The staleness of this worker's updates.
    """

    x: Tensor
    writes: np.ndarray
    examples: np.ndarray
    meeting: Meeting
    taus: Counter[int]


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
        many=True,
        whole_batches=True,
        together=False,
        identical=False,
        partition="random-partition",
        deterministic=False,
        shares_memory=True,
        cuda=True,
        private=True,
        resume=True,
        lacks={"sync_batchnorm": "has workers that do not step together"},
    )

    lock: bool = option(False, "let one worker at a time read or write (for comparison)")
    shared_state: bool = option(False, "share momentum or Adam's moments, not only parameters")

    @property
    def lr_scaling(self) -> Scaling:
        """Divided by the workers: an update is stale by those of all others."""
        return "inverse"

    def on_gpu(self, config: RunConfig) -> bool:
        """Say whether the optimizer can step x while the model is in x̂: ours hold neither."""
        return isinstance(config.optimizer, SGD | Adam | AdamW)

    def run(self, worker: Worker) -> None:
        """Train: read, compute, write, all in one vector that everybody else uses too."""
        import torch

        memory = cast("MemoryGroup", worker.comm)
        if self.shared_state:
            _share_state(worker, memory)
        own, gpu = worker.params, worker.params.is_cuda  # (dim,)
        x = memory.share(own)  # (dim,)
        writes = memory.share(torch.zeros(memory.size, dtype=torch.int64)).numpy()
        taus: Counter[int] = worker.state or Counter()
        writes[worker.rank] = worker.step
        examples = memory.share(torch.zeros(memory.size, dtype=torch.float64)).numpy()
        examples[worker.rank] = sum(epoch.examples for epoch in worker.course.epochs)
        meeting = Meeting(worker, memory)
        worker.evaluation.hold = meeting if worker.evaluation.aim.ends else None
        worker.state = _Shared(x, writes, examples, meeting, taus)
        turn = partial(_alone, memory, settle=gpu) if self.lock else nullcontext
        if gpu or not self.lock:
            _step_in(worker.optimizer, x)
        if not self._copies(worker):
            worker.replica.move(x)
        for batch in worker.batches():
            with turn():
                seen = writes.sum()
                if self._copies(worker):
                    own.copy_(x)
            g = worker.gradient(batch)
            with turn():
                taus[int(writes.sum() - seen)] += 1
                if self.lock and not gpu:
                    own.copy_(x)
                worker.update(g)
                if self.lock and not gpu:
                    x.copy_(own)
                writes[worker.rank] += 1
                examples[worker.rank] += batch.examples
        meeting.leave()
        everyones = memory.gather(sorted(taus.items()))
        worker.facts["staleness"] = staleness.describe(Counter(dict(each)) for each in everyones)
        if gpu:
            _let_go(worker, own)
        else:
            worker.replica.move(x)

    def _copies(self, worker: Worker) -> bool:
        """Say whether x̂ is a copy: one to look at in peace, or what a GPU's graphs were made for.

        Elsewhere the model lives in x itself, and what it has not read yet may still change.
        """
        return self.lock or worker.params.is_cuda

    def progress(self, worker: Worker) -> tuple[int, float]:
        """Return the updates of all in the vector that they share, per worker."""
        shared: _Shared = worker.state
        return int(shared.writes.sum()) // len(shared.writes), float(shared.examples.sum())

    def consensus(self, worker: Worker) -> Tensor:
        """Return the vector that all share."""
        return cast("Tensor", worker.state.x)

    def pause(self, worker: Worker) -> None:
        """Meet the others for a checkpoint, if it is time."""
        shared: _Shared = worker.state
        shared.meeting.attend(int(shared.writes.sum()) // len(shared.writes))

    def state(self, worker: Worker) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the staleness so far, and x where the worker's own copy is another."""
        shared: _Shared = worker.state
        held = {"x": shared.x} if self._copies(worker) else {}
        return held, {"taus": sorted(shared.taus.items())}

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Take back the staleness, for `run` to go on with, and x."""
        worker.state = Counter({int(tau): n for tau, n in numbers["taus"]})
        if "x" in tensors:
            worker.params.copy_(tensors["x"])


@contextmanager
def _alone(memory: MemoryGroup, *, settle: bool) -> Iterator[None]:
    """Hold the lock until what was begun under it is done, also where a GPU does it."""
    import torch

    with memory.lock():
        yield
        if settle:
            torch.cuda.synchronize()


def _step_in(optimizer: Optimizer, x: Tensor) -> None:
    """Let the optimizer work on `x`, which is as long as the vector that it worked on."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            start = p.storage_offset()
            p.data = x[start : start + p.numel()].view(p.shape)


def _let_go(worker: Worker, own: Tensor) -> None:
    """Go back to memory of one's own, with x's values: on a GPU x is gone with worker 0."""
    import torch

    own.copy_(worker.state.x)
    _step_in(worker.optimizer, own)
    worker.state.x = own
    for state in worker.optimizer.state.values():
        state |= {n: v.clone() for n, v in state.items() if isinstance(v, torch.Tensor)}


def _share_state(worker: Worker, memory: MemoryGroup) -> None:
    """Share what the optimizer remembers; for ours it begins with zeros."""
    import torch

    optimizer = worker.optimizer
    if not optimizer.state:
        params = worker.params.clone()
        worker.replica.grad.zero_()
        optimizer.step()  # a step along nothing makes the state
        worker.params.copy_(params)
        for value in (v for state in optimizer.state.values() for v in state.values()):
            if isinstance(value, torch.Tensor):
                value.zero_()
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
        state[name] = memory.share(value)
