"""The compressed sum of gradients that replaces sync's all-reduce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from manyhands.comm.compression import compressed_cost, make_compressor

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.strategies.strategy import WorkerView


class CompressedSum:
    """The compressed sum and the update of one worker, with what it keeps between steps.

    Args:
        worker: The worker.
        compress: The option of that name; not "none".
        algorithm: The all-reduce inside PowerSGD.
    """

    def __init__(self, worker: WorkerView, compress: str, algorithm: str) -> None:
        shapes = [tuple(p.shape) for _, p in worker.replica.named]
        made = make_compressor(compress, shapes, seed=worker.config.seed, algorithm=algorithm)
        assert made is not None
        self.compressor = made
        powersgd = compress.startswith("powersgd")
        if not powersgd or algorithm not in ("auto", "mpi", "hierarchical"):  # which vary
            by = algorithm if powersgd else "ring"
            sent = compressed_cost(compress, shapes, worker.comm.size, by).bytes_each
            worker.facts["compression"] = {"bytes_per_step": sent}

    def step(self, worker: WorkerView, gradient: Tensor) -> None:
        """Sum the gradient over all workers and let the optimizer step along it. Collective.

        What your own loop appends to it, one number per parameter tensor, is summed exactly. A
        tensor that no worker reaches in this step has one too, if a residual moves it.
        """
        dim, named = worker.replica.dim, worker.replica.named
        reached = gradient[dim:]
        with worker.exchanging():
            self.compressor.allreduce(gradient[:dim], worker.comm, worker.step)
            if len(reached):
                worker.comm.allreduce(reached)
        if len(reached):
            parts = torch.split(gradient[:dim], [p.numel() for _, p in named])
            moved = torch.stack([part.any() for part in parts])  # the same on all workers
            reached.clamp_(min=moved.to(reached.dtype))
        worker.update(gradient)

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
