"""Workers of one host update a large model together: each the parameters whose gradient it sums.

    each worker k, for each piece p that is k's to reduce:
        g[p] ← Σ_j g_j[p]              (read from the others' memory)
        w[p] ← the optimizer's update of w[p] along g[p]
    everyone copies the new w[p] of the others' pieces

After an all-reduce all workers would do the same update of everything. Here each does 1 / P of it,
while the sums are in its cache, and remembers the momentum of that alone; what travels are new
parameters instead of sums, as many bytes. The arithmetic is the same, number by number. This is the
first stage of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), within a host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from manyhands.optimizers import SGD, direction

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from manyhands.comm.mpi import MPICommunicator
    from manyhands.worker import Worker

# Bytes of parameters from which on this takes less time. Measured; see docs/decisions.md.
LARGE = 512 << 10
_MOMENTUM = "momentum_buffer"  # torch.optim.SGD's name for it


class Cut(NamedTuple):
    """What of one piece lies within one of the optimizer's parameters."""

    group: dict[str, Any]
    inside: slice  # of the piece
    w: Tensor
    v: Tensor | None


class Piecewise:
    """The all-reduce and the update of one worker, in one. Made by all workers together."""

    def __init__(self, worker: Worker, algorithm: str) -> None:
        self._comm, self._algorithm = worker.comm, algorithm
        self._params, self._optimizer = worker.params, worker.optimizer
        self._stepped = False  # since the momentum was whole, on all workers alike
        self._cuts: dict[int, list[Cut]] = {}  # of this worker's pieces, by where they begin

    def step(self, worker: Worker, gradient: Tensor) -> None:
        """Sum the gradient over all workers and let the optimizer step along it. Collective."""
        if worker.rate:
            worker.rate.set(self._optimizer, worker.step)
        worker.allreduce_through(gradient, self._algorithm, self._update)
        self._stepped = True

    def _update(self, reduced: np.ndarray, place: slice) -> None:
        """Put the new parameters in the place of their gradient; the worker's own follow them."""
        g = torch.from_numpy(reduced)
        if place.start not in self._cuts:
            self._cuts[place.start] = self._cut(place)
        for group, inside, w, v in self._cuts[place.start]:
            part = g[inside]
            along = direction(group, w, part, v)
            torch.add(w, along, alpha=-group["lr"], out=part)

    def _cut(self, place: slice) -> list[Cut]:
        """Cut a piece where the optimizer's parameters end, and let its momentum begin with 0."""
        found = []
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                offset = p.storage_offset()
                start, stop = max(place.start, offset), min(place.stop, offset + p.numel())
                if start < stop:
                    within = slice(start - offset, stop - offset)
                    inside = slice(start - place.start, stop - place.start)
                    found.append(
                        Cut(group, inside, p.data[within], self._momentum(group, p, within))
                    )
        return found

    def _momentum(self, group: dict[str, Any], p: Tensor, within: slice) -> Tensor | None:
        if not group["momentum"]:
            return None
        state = self._optimizer.state[p]
        if state.get(_MOMENTUM) is None:
            state[_MOMENTUM] = torch.zeros_like(p)
        return cast("Tensor", state[_MOMENTUM][within])

    def gather(self) -> None:
        """Let every worker remember the whole momentum, as a checkpoint has it. Collective."""
        groups = [group for group in self._optimizer.param_groups if group["momentum"]]
        if not self._stepped or not groups:
            return
        whole = torch.zeros_like(self._params)  # everyone's pieces, and 0 for those of others
        for place, cuts in self._cuts.items():
            for cut in cuts:
                if cut.v is not None:
                    whole[place + cut.inside.start : place + cut.inside.stop] = cut.v
        with self._comm.meter.off():
            self._comm.allreduce(whole)
        for p in (p for group in groups for p in group["params"]):
            offset = p.storage_offset()
            self._optimizer.state[p][_MOMENTUM] = whole[offset : offset + p.numel()].clone()
        self._cuts.clear()
        self._stepped = False


def piecewise(worker: Worker, algorithm: str) -> Piecewise | None:
    """Return what updates this worker's model together with the others, where that is faster.

    The optimizer must treat every number alone, and nothing may ask for the whole sum: a norm to
    clip, or workers who outlive others, whose momentum would be gone.
    """
    config = worker.config
    whole = config.clip_norm is not None or config.privacy or config.on_failure == "continue"
    if whole or worker.comm.size == 1 or worker.comm.name != "mpi" or worker.params.is_cuda:
        return None
    if not isinstance(config.optimizer, SGD) or algorithm not in ("auto", "shared-memory"):
        return None
    nbytes = worker.params.nbytes
    if nbytes < LARGE or not cast("MPICommunicator", worker.comm).shares(nbytes):
        return None
    return Piecewise(worker, algorithm)
