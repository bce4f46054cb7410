"""The model solution of assignment 4. The tag of a message is the number of its layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

Layers = list[np.ndarray]
Gradient = Callable[[Layers, int], Layers]


def owner(layer: int, masters: int) -> int:
    """Return which of the masters, from 0, owns a layer; each owns about as many as the others."""
    return layer % masters


def batches_of(worker: int, workers: int, batches: int) -> list[int]:
    """Return the indices of a worker's batches, from 0; each batch goes to one worker."""
    return list(range(worker, batches, workers))


def work(
    layers: Layers, gradient: Gradient, batches: list[int], masters: int, comm: MPI.Comm
) -> None:
    """Send each batch's gradient, layer by layer, and receive the new weights."""
    workers = comm.size - masters
    places = [workers + owner(layer, masters) for layer in range(len(layers))]
    for batch in batches:
        gradients = [np.ascontiguousarray(each) for each in gradient(layers, batch)]
        requests = [comm.Irecv(w, places[i], i) for i, w in enumerate(layers)]
        requests += [comm.Isend(g, places[i], i) for i, g in enumerate(gradients)]
        MPI.Request.Waitall(requests)


def serve(layers: Layers, own: list[int], pushes: int, lr: float, comm: MPI.Comm) -> None:
    """Wait for any worker, update its layer, answer that worker."""
    arrived = {layer: np.empty_like(layers[layer]) for layer in own}
    left = dict.fromkeys(own, pushes)
    requests = {layer: comm.Irecv(arrived[layer], MPI.ANY_SOURCE, layer) for layer in own}
    while any(left.values()):
        waiting = [layer for layer in own if left[layer]]
        status = MPI.Status()
        i = MPI.Request.Waitany([requests[layer] for layer in waiting], status)
        layer = waiting[i]
        layers[layer] -= lr * arrived[layer]
        comm.Isend(layers[layer].copy(), status.Get_source(), layer).Wait()
        left[layer] -= 1
        if left[layer]:
            requests[layer] = comm.Irecv(arrived[layer], MPI.ANY_SOURCE, layer)


def train(
    layers: Layers, gradient: Gradient, batches: int, masters: int, lr: float, comm: MPI.Comm
) -> Layers | None:
    """Train on all batches; return the weights on process 0, None on the others."""
    workers = comm.size - masters
    owned = {m: [i for i in range(len(layers)) if owner(i, masters) == m] for m in range(masters)}
    if comm.rank >= workers:
        own = owned[comm.rank - workers]
        serve(layers, own, batches, lr, comm)
        MPI.Request.Waitall([comm.Isend(layers[i], 0, len(layers) + i) for i in own])
        return None
    work(layers, gradient, batches_of(comm.rank, workers, batches), masters, comm)
    if comm.rank:
        return None
    sources = [(i, workers + master) for master, own in owned.items() for i in own]
    MPI.Request.Waitall([comm.Irecv(layers[i], at, len(layers) + i) for i, at in sources])
    return layers
