"""Workers of one host update a large model together: each the parameters whose gradient it sums.

    each worker k, for each piece p that is k's to reduce:
        g[p] ← Σ_j g_j[p]              (read from the others' memory)
        w[p] ← the optimizer's update of w[p] along g[p]
    everyone copies the new w[p] of the others' pieces

After an all-reduce all workers would do the same update of everything. Here each does 1 / P of it,
while the sums are in its cache, and remembers the momentum, or Adam's two moments, of that alone;
what travels are new parameters instead of sums, as many bytes. The arithmetic is the same, number
by number. This is the first stage of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), within a
host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from manyhands.config.optimizers import SGD, AdamW, Optimizer, compute_direction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from torch import Tensor

    from manyhands.comm.mpi import MPICommunicator
    from manyhands.worker.worker import Worker

# Bytes of parameters from which on this takes less time. Measured; see docs/decisions.md.
LARGE = 512 << 10
_MOMENTUM = ("momentum_buffer",)  # torch.optim's names for what it remembers of each number
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Cut(NamedTuple):
    """What of one piece lies within one of the optimizer's parameters."""

    group: dict[str, Any]
    inside: slice  # of the piece
    w: Tensor
    memory: tuple[Tensor, ...]  # what the optimizer remembers of it
    state: dict[str, Any]  # of the whole parameter


class ShardedUpdate:
    """The all-reduce and the update of one worker, in one. Made by all workers together."""

    def __init__(self, worker: Worker, algorithm: str) -> None:
        chosen = worker.config.optimizer
        self._comm, self._algorithm = worker.comm, algorithm
        self._params, self._optimizer = worker.params, worker.optimizer
        self._adapts, self._decoupled = not isinstance(chosen, SGD), isinstance(chosen, AdamW)
        self._names = _remembered(chosen)
        self._stepped = False  # since what is remembered was whole, on all workers alike
        self._cuts: dict[int, list[Cut]] = {}  # of this worker's pieces, by where they begin

    def step(self, worker: Worker, gradient: Tensor) -> None:
        """Sum the gradient over all workers and let the optimizer step along it. Collective."""
        if rate := worker.computation.rate:
            rate.set(self._optimizer, worker.step)
        if self._adapts:
            for _, p in self._each():
                self._optimizer.state[p].setdefault("step", torch.zeros(())).add_(1)
        worker.allreduce_through(gradient, self._algorithm, self._update)
        self._stepped = True

    def _each(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Yield the optimizer's parameters, each with its group."""
        return ((group, p) for group in self._optimizer.param_groups for p in group["params"])

    def _state(self, p: Tensor) -> dict[str, Any]:
        """Return what the optimizer remembers of a parameter; it begins with zeros."""
        state: dict[str, Any] = self._optimizer.state[p]
        for name in self._names:
            if state.get(name) is None:
                state[name] = torch.zeros_like(p)
        return state

    def _update(self, reduced: np.ndarray, place: slice) -> None:
        """Put the new parameters in the place of their gradient; the worker's own follow them."""
        g = torch.from_numpy(reduced)
        if place.start not in self._cuts:
            self._cuts[place.start] = self._cut(place)
        for group, inside, w, memory, state in self._cuts[place.start]:
            part = g[inside]
            if self._adapts:
                adapt(group, w, part, memory, float(state["step"]), decoupled=self._decoupled)
            else:
                along = compute_direction(group, w, part, *(memory or (None,)))
                torch.add(w, along, alpha=-group["lr"], out=part)

    def _cut(self, place: slice) -> list[Cut]:
        """Cut a piece where the optimizer's parameters end."""
        cuts = []
        for group, p in self._each():
            offset = p.storage_offset()
            start, stop = max(place.start, offset), min(place.stop, offset + p.numel())
            if start < stop:
                within = slice(start - offset, stop - offset)
                inside = slice(start - place.start, stop - place.start)
                state = self._state(p)
                memory = tuple(state[name][within] for name in self._names)
                cuts.append(Cut(group, inside, p.data[within], memory, state))
        return cuts

    def state(self, worker: Worker) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Let every worker hold the whole momentum; return nothing besides. Collective."""
        self.gather()
        return {}, {}

    def restore(
        self, worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
    ) -> None:
        """Do nothing: the optimizer's state is the worker's."""

    def gather(self) -> None:
        """Let every worker remember everything, as a checkpoint has it. Collective."""
        if not self._stepped:
            return
        for number, name in enumerate(self._names):
            whole = torch.zeros_like(self._params)  # everyone's pieces, and 0 for those of others
            for place, cuts in self._cuts.items():
                for cut in cuts:
                    start, stop = place + cut.inside.start, place + cut.inside.stop
                    whole[start:stop] = cut.memory[number]
            with self._comm.meter.off():
                self._comm.allreduce(whole)
            for _, p in self._each():
                offset = p.storage_offset()
                self._state(p)[name] = whole[offset : offset + p.numel()].clone()
        self._cuts.clear()
        self._stepped = False


def _remembered(optimizer: object) -> tuple[str, ...]:
    if isinstance(optimizer, SGD):
        return _MOMENTUM if optimizer.momentum else ()
    return _MOMENTS


def adapt(
    group: Mapping[str, Any],
    w: Tensor,
    g: Tensor,
    moments: tuple[Tensor, ...],
    count: float,
    *,
    decoupled: bool,
) -> None:
    """Put where torch.optim.Adam goes from `w`, in its step number `count`, in the place of `g`.

    With `decoupled`, AdamW. The arithmetic is torch's, call by call.
    """
    (first, second), (m, v), decay, along = group["betas"], moments, group["weight_decay"], g
    if decay and decoupled:
        w = w * (1 - group["lr"] * decay)
    elif decay:
        along = g.add(w, alpha=decay)
    m.lerp_(along, 1 - first)
    v.mul_(second).addcmul_(along, along, value=1 - second)
    scale = (v.sqrt() / (1 - second**count) ** 0.5).add_(group["eps"])
    torch.addcdiv(w, m, scale, value=-group["lr"] / (1 - first**count), out=g)


def choose_update(worker: Worker, algorithm: str) -> ShardedUpdate | None:
    """Return a sharded update, where that is faster; otherwise None.

    The optimizer must treat every number alone, and nothing may ask for the whole sum: a norm to
    clip, or survivors of a failure, which do not have the optimizer state of the dead.
    """
    config = worker.config
    whole = config.clip_norm is not None or config.privacy or config.on_failure == "continue"
    if whole or worker.comm.size == 1 or worker.comm.name != "mpi" or worker.params.is_cuda:
        return None
    if not isinstance(config.optimizer, Optimizer) or algorithm not in ("auto", "shared-memory"):
        return None
    nbytes = worker.params.nbytes
    if nbytes < LARGE or not cast("MPICommunicator", worker.comm).shares(nbytes):
        return None
    return ShardedUpdate(worker, algorithm)
