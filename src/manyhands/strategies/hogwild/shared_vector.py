"""The vector in shared memory that all workers of Hogwild read and write."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from manyhands.config.optimizers import SGD, Adam, AdamW
from manyhands.errors import ConfigError
from manyhands.strategies.hogwild.checkpoint import StepBarrier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.optim import Optimizer

    from manyhands.comm.memory import MemoryGroup
    from manyhands.worker.worker import Worker


class SharedVector:
    """One worker's access to the shared vector, and what it counts. Made by all workers together.

    Args:
        worker: The worker; its `state` becomes this object. A resumed run's has its staleness.
        lock: One worker at a time reads or writes.
        shared_state: The optimizer's state is shared, too.

    Attributes:
        x: The parameters; shape (dim,).
        own: This worker's memory for x̂, where x̂ is a copy; shape (dim,).
        copies: x̂ is a copy of x: with `lock`, and on a GPU, whose graphs were made for `own`.
            Otherwise the model is in x itself, and what it has not read yet may still change.
        writes_back: The optimizer steps `own`, which is then copied to x.
        writes: The updates of each worker so far; shape (P,). Each worker writes its own entry.
        examples: Behind these; shape (P,).
        taus: The staleness of this worker's updates.
        turn: Enters the lock, if there is one.
        barrier: Stops all workers for checkpoints and evaluation.
    """

    def __init__(self, worker: Worker, *, lock: bool, shared_state: bool) -> None:
        memory = cast("MemoryGroup", worker.comm)
        if shared_state:
            _share_optimizer_state(worker, memory)
        self.worker, self.own, gpu = worker, worker.params, worker.params.is_cuda
        self.x = memory.share(self.own)
        self.writes = memory.share(torch.zeros(memory.size, dtype=torch.int64)).numpy()
        self.taus: Counter[int] = worker.state or Counter()
        self.writes[worker.rank] = worker.step
        self.examples = memory.share(torch.zeros(memory.size, dtype=torch.float64)).numpy()
        self.examples[worker.rank] = sum(epoch.examples for epoch in worker.training.epochs)
        self.barrier = StepBarrier(worker, memory)
        worker.evaluation.gate = self.barrier
        worker.state = self
        self.copies, self.writes_back = lock or gpu, lock and not gpu
        self.turn: Callable[[], AbstractContextManager[None]] = (
            partial(_locked, memory, synchronize=gpu) if lock else nullcontext
        )
        if not self.writes_back:
            _point_optimizer_at(worker.optimizer, self.x)
        if not self.copies:
            worker.replica.move(self.x)

    @property
    def steps(self) -> int:
        """The updates so far, per worker."""
        return int(self.writes.sum()) // len(self.writes)

    def release(self) -> None:
        """Leave the model with the final x, after all workers are done.

        On a GPU x is gone with worker 0, so that the model gets memory of its own again.
        """
        worker = self.worker
        if not worker.params.is_cuda:
            worker.replica.move(self.x)
            return
        self.own.copy_(self.x)
        _point_optimizer_at(worker.optimizer, self.own)
        self.x = self.own
        for state in worker.optimizer.state.values():
            state |= {n: v.clone() for n, v in state.items() if isinstance(v, torch.Tensor)}


@contextmanager
def _locked(memory: MemoryGroup, *, synchronize: bool) -> Iterator[None]:
    """EvaluationGate the lock until what was begun under it is done, also where a GPU does it."""
    with memory.lock():
        yield
        if synchronize:
            torch.cuda.synchronize()


def _point_optimizer_at(optimizer: Optimizer, x: Tensor) -> None:
    """Let the optimizer step `x`, which is as long as the vector that it stepped before."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            start = p.storage_offset()
            p.data = x[start : start + p.numel()].view(p.shape)


def _share_optimizer_state(worker: Worker, memory: MemoryGroup) -> None:
    """Share the optimizer's state, which begins with zeros."""
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
