"""Assignment 4: an asynchronous parameter server. Fill in what raises NotImplementedError.

The first processes are the workers, the last `masters` processes the masters. A model is a list of
arrays, one for each layer. A gradient is such a list too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

Layers = list[np.ndarray]
Gradient = Callable[[Layers, int], Layers]  # of (the weights, the index of a batch)


def owner(layer: int, masters: int) -> int:
    """Return which of the masters, from 0, owns a layer; each owns about as many as the others."""
    raise NotImplementedError("owner")


def batches_of(worker: int, workers: int, batches: int) -> list[int]:
    """Return the indices of a worker's batches, from 0; each batch goes to one worker."""
    raise NotImplementedError("batches_of")


def work(
    layers: Layers, gradient: Gradient, batches: list[int], masters: int, comm: MPI.Comm
) -> None:
    """Be a worker: send each batch's gradient, layer by layer, and receive the new weights.

    A layer's gradient goes to the layer's master, which answers with the layer's new weights. Use
    comm.Isend, comm.Irecv and waiting only.
    """
    raise NotImplementedError("work")


def serve(layers: Layers, own: list[int], pushes: int, lr: float, comm: MPI.Comm) -> None:
    """Be a master of the layers `own`: wait for any worker, update, answer that worker.

    Each of the `pushes` batches brings one gradient of each layer. Several workers' gradients may
    arrive at once; nobody waits for the slowest worker.
    """
    raise NotImplementedError("serve")


def train(
    layers: Layers, gradient: Gradient, batches: int, masters: int, lr: float, comm: MPI.Comm
) -> Layers | None:
    """Train on all batches; return the weights on process 0, None on the others.

    Every process calls this with the same arguments. At the end the masters send their layers to
    process 0.
    """
    raise NotImplementedError("train")
