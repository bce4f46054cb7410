"""Synchronous SGD: every worker a part of the batch, one all-reduce of the gradient per step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.config.all_reduces import all_reduce_option
from manyhands.config.option_declaration import Tags, option
from manyhands.strategies.strategy import Strategy
from manyhands.strategies.sync.spec import SyncSpec
from manyhands.worker.abilities import Checkpointable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from manyhands.strategies.strategy import BatchShare, WorkerView
    from manyhands.worker.worker import Batch, Worker


@dataclass(frozen=True)
class Sync(SyncSpec, Strategy, Checkpointable):
    """Synchronous data-parallel SGD (Chen et al. 2016, arXiv 1604.00981).

    ```
    each worker k, for each global batch B = B_1 ∪ … ∪ B_P:
        g_k ← (|B_k| / |B|) ∇f_{B_k}(w)
        g   ← Σ_k g_k                       (all-reduce)
        w   ← w − η g                       (the same on every worker)
    ```

    w: parameters; B_k: worker k's part of the batch; f: mean loss; η: learning rate; P: workers.

    Guarantees:
        - One worker equals `sequential`; P workers compute the same update up to rounding, for
          every P and batch size, dropout included, since parts are weighted by their exact number
          of examples and dropout masks belong to examples.
        - With `sync_batchnorm` that holds for BatchNorm, too: see `manyhands.model.batchnorm`.
        - All replicas are bit-identical after every step; they are hashed each epoch.
        - With `overlap` two workers get the same bits as without, and more get the same sum up to
          rounding.
        - With `compress` the sum is approximate (see `manyhands.comm.compression` for each method):
          the replicas stay bit-identical, one worker still equals `sequential`, and P workers
          differ from one by more than rounding.
    Cost per step: one all-reduce of dim numbers (see `manyhands.allreduce` for messages and bytes;
    `manyhands.comm.compression` where compressed); with `sync_batchnorm` two small ones more for
    each BatchNorm layer.
    Workers of one host update a large model together, each a part (see `sharded_update.py`).
    With `overlap` the sum begins while backward computes (see `overlapped_sum.py`): for each bucket
    of 1 MB, P − 1 messages, and with P > 2 as many again; 2 (P − 1) / P times the bytes of dim.
    """

    name: ClassVar[str] = "sync"
    allreduce: str = all_reduce_option("gradients are")
    compress: str = option(
        "none",
        "send less, approximately: fp16, bf16, int8, topk:FRACTION or powersgd:RANK",
        tags=Tags(hashed="if changed"),
    )
    overlap: bool = option(
        False, "exchange while the gradient is computed", tags=Tags(hashed="if changed")
    )

    def __post_init__(self) -> None:
        self.check_options()

    def prepare(self, worker: Worker) -> None:
        """Find out whether the workers had better update the model together."""
        from manyhands.strategies.sync.sharded_update import choose_update

        self.begin(worker)
        worker.state = worker.state or choose_update(worker, self.allreduce)

    def begin(self, worker: WorkerView) -> None:
        """Compress or overlap from the first step on, if requested."""
        worker.state = None
        if self.overlap and worker.comm.size > 1:
            from manyhands.strategies.sync.overlapped_sum import OverlappedSum

            worker.state = OverlappedSum(worker)
        if self.compress != "none":
            from manyhands.strategies.sync.compressed_sum import CompressedSum

            worker.state = CompressedSum(worker, self.compress, self.allreduce)

    def run(self, worker: Worker) -> None:
        """Train: gradient of my part, sum over all, the same update everywhere."""
        try:
            for batch in worker.batches():
                self.apply(worker, self.gradient(worker, batch))
        finally:
            if early := worker.computation.early:
                early.close()

    def gradient(self, worker: Worker, batch: Batch) -> Tensor:
        """Return the gradient of my part; with `sync_batchnorm`, collective.

        What BatchNorm layers exchange meanwhile counts as exchange, not as computing.
        """
        norms = worker.replica.norms
        if norms is None:
            return worker.gradient(batch)
        before, clock = norms.seconds, worker.clock

        def note(phase: str) -> None:
            worker.board.note(worker.number, worker.step, phase)

        with norms.over(worker.comm, self.allreduce, note):
            gradient = worker.gradient(batch)
        clock.computed[-1] -= norms.seconds - before
        clock.exchange(clock.computed[-1], time.monotonic())
        return gradient

    def state(self, worker: Worker) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Return what compression keeps; let every worker hold the whole momentum. Collective."""
        return worker.state.state(worker) if worker.state else ({}, {})

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Take back what compression had kept."""
        if worker.state:
            worker.state.restore(worker, tensors, numbers)

    def step(self, worker: WorkerView, batch: BatchShare) -> None:
        """Do one update, the same on every worker."""
        self.apply(worker, worker.gradient(batch))

    def apply(self, worker: WorkerView, gradient: Tensor) -> None:
        """Sum the gradient over the workers and update."""
        if worker.state:  # it is compressed, overlapped, or a large model on one host
            worker.state.step(worker, gradient)
        else:
            worker.allreduce(gradient, self.allreduce)
            worker.update(gradient)

    def consensus(self, worker: WorkerView) -> Tensor:
        """Return this replica's parameters: all replicas hold the same."""
        return worker.params
