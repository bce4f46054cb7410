"""The compressed sum of gradients that replaces sync's all-reduce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from manyhands.comm.compression import compressed_cost, make_compressor

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.comm.compression import Compressor
    from manyhands.strategies.strategy import WorkerView
    from manyhands.strategies.sync.sync import Sync


class CompressedSum:
    """What one worker keeps to compress its gradients.

    Attributes:
        compressor: Compresses them.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor

    def sum(self, worker: WorkerView, gradient: Tensor) -> None:
        """Sum the gradient over all workers, in place. Collective.

        What your own loop appends to it, one number per parameter tensor, is summed exactly.
        """
        dim = worker.replica.dim
        with worker.exchanging():
            self.compressor.allreduce(gradient[:dim], worker.comm, worker.step)
            if len(gradient) > dim:
                worker.comm.allreduce(gradient[dim:])

    def state(self, worker: WorkerView) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a checkpoint keeps of it."""
        return self.compressor.state(worker.step), {"rank": worker.rank}

    def restore(
        self, worker: WorkerView, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Take that back; a worker that is new begins without a residual.

        It is given the part of another, whose residual must not be sent twice.
        """
        own = numbers.get("rank", worker.rank) == worker.rank
        self.compressor.restore(
            {name: tensor for name, tensor in tensors.items() if own or name != "residual"}
        )


def choose_compression(sync: Sync, worker: WorkerView) -> CompressedSum | None:
    """Return what compresses this worker's gradients; None without compression."""
    shapes = [tuple(p.shape) for _, p in worker.replica.named]
    compressor = make_compressor(
        sync.compress, shapes, seed=worker.config.seed, algorithm=sync.allreduce
    )
    if compressor is None:
        return None
    powersgd = compressor.name.startswith("powersgd")
    if not powersgd or sync.allreduce not in ("auto", "mpi", "hierarchical"):  # which vary
        algorithm = sync.allreduce if powersgd else "ring"
        sent = compressed_cost(sync.compress, shapes, worker.comm.size, algorithm).bytes_each
        worker.facts["compression"] = {"bytes_per_step": sent}
    return CompressedSum(compressor)
