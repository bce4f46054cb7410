"""Captures one worker's steps on a GPU as CUDA graphs, and replays them.

A small model's step is dozens of kernels of a few microseconds each; to start them one by one from
Python takes longer than to run them. A graph starts all of them at once. What a step gave (its
loss, how many were right) stays on the GPU until somebody asks: asking would mean to wait.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from manyhands.model.replica import Loss

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from manyhands.data import Split
    from manyhands.model.replica import Replica

_WARM_UPS = 3  # times a step is tried before it is captured: libraries choose and load kernels
_STEADY = 8  # updates alike before one is captured: to capture takes as long as many of them
_KEPT = 512  # steps whose losses may wait on the GPU


@dataclass(frozen=True)
class _Captured:
    """The captured gradient of one batch size: its graph and its input tensors."""

    graph: torch.cuda.CUDAGraph
    rows: Tensor  # (n,) which examples
    x: Tensor
    y: Tensor


class StepResults:
    """The losses of the last steps and how many predictions were right, kept on the device.

    Adding a step starts kernels but never waits for the device, so a graph can capture it.

    Args:
        like: A tensor with the type of the losses, on the device.
    """

    def __init__(self, like: Tensor) -> None:
        self._losses = like.new_zeros(_KEPT)
        self._right = torch.zeros((), dtype=torch.int64, device=like.device)
        self._place = torch.zeros(1, dtype=torch.int64, device=like.device)  # of the next loss

    def add(self, loss: Tensor, right: Tensor | None) -> None:
        """Keep the mean loss of one step; `right` is None where predictions are not counted."""
        self._losses.index_copy_(0, self._place, loss.view(1).to(self._losses.dtype))
        self._place.add_(1)
        if right is not None:
            self._right.add_(right)

    def clear(self) -> None:
        """Forget all steps."""
        self._place.zero_()
        self._right.zero_()

    def take(self, steps: int) -> tuple[list[float], int]:
        """Return and forget the losses of `steps` steps, and how many were right in all of them."""
        results = self._losses[:steps].tolist(), int(self._right)
        self.clear()
        return results


class Graphs:
    """The gradient and the update of one worker on its GPU, one graph each.

    Two, since a strategy may exchange between them.

    Args:
        replica: The model, on a GPU.
        optimizer: Its optimizer.
        split: The training set; where it is on the GPU, batches are made in the graph.
        ours: Whether the optimizer is one of ours: its first step is that of a state of zeros.
        captured: Whether to capture at all; without, every kernel is started on its own.
    """

    def __init__(
        self,
        replica: Replica,
        optimizer: torch.optim.Optimizer,
        split: Split,
        *,
        ours: bool,
        captured: bool,
    ) -> None:
        self.replica, self.optimizer, self.split = replica, optimizer, split
        self.captured, self._ours = captured, ours
        params = replica.params
        self._results = StepResults(params)
        self._waiting: list[tuple[int, int]] = []  # step and examples of those whose losses wait
        self._gradients: dict[int, _Captured] = {}
        self._update: torch.cuda.CUDAGraph | None = None
        self._sign: tuple[object, ...] | None = None  # what the last update depended on
        self._steady = 0  # updates since that changed
        self._stream = torch.cuda.Stream(params.device)  # type: ignore[no-untyped-call]

    def prepare(self, batches: Sequence[np.ndarray]) -> None:
        """Try and capture steps; parameters, state and random numbers stay unchanged.

        Args:
            batches: Examples (indices) for a batch of each size that is to be captured.

        Raises:
            RuntimeError: The model's step cannot be captured.
        """
        with self.replica.undisturbed():
            for indices in batches:
                self._try_out(indices)
            if self._ours:
                self._aside(self.optimizer.step)
                for state in self.optimizer.state.values():
                    for value in state.values():
                        value.zero_()
        if self.captured and self._ours:
            self._sign = self._signature()
            self._update = self._capture(self.optimizer.step)
        self._results.clear()
        torch.cuda.synchronize()

    def batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return these examples; if a graph makes them, they are valid after `gradient`."""
        made = self._gradients.get(len(indices))
        if made is None:
            return self.split.batch(indices)
        if self.split.resident or self.replica.masks:
            made.rows.copy_(torch.from_numpy(indices), non_blocking=True)
        if not self.split.resident:
            for static, new in zip((made.x, made.y), self.split.batch(indices), strict=True):
                static.copy_(new, non_blocking=True)
        return made.x, made.y

    def gradient(self, x: Tensor, y: Tensor, step: int) -> None:
        """Fill the replica's `grad` for a batch that `batch` returned last; the loss is kept."""
        if len(x) == 0:
            self.replica.grad.zero_()
            return
        made = self._gradients.get(len(x))
        if made is not None and made.x is x:
            made.graph.replay()
        else:
            self._compute(x, y)
        self._waiting.append((step, len(x)))

    @property
    def full(self) -> bool:
        """Whether no loss fits any more: `settle` must come before the next step."""
        return len(self._waiting) == _KEPT

    def settle(self) -> list[tuple[int, Loss]]:
        """Wait for the GPU; return the results of the steps since the last call.

        How many were right is known of all of them together, and counted with the last.
        """
        torch.cuda.synchronize()
        waiting, self._waiting = self._waiting, []
        losses, counted = self._results.take(len(waiting))
        right = [0] * (len(waiting) - 1) + [counted] * bool(waiting)
        pairs = zip(waiting, losses, right, strict=True)
        return [(step, Loss(mean, count, n)) for (step, n), mean, count in pairs]

    def update(self) -> None:
        """Let the optimizer step along `grad`.

        Where its vectors were replaced or a learning rate has changed, it does so kernel by kernel
        until nothing has changed for some steps, and is captured anew then.
        """
        if not (self.captured and self._ours):
            self.optimizer.step()
            return
        self._steady = self._steady + 1 if self._signature() == self._sign else 0
        if not self._steady:
            self._update = None
        elif self._update is None and self._steady > _STEADY:
            self._update = self._capture(self.optimizer.step)
        if self._update is None:
            self.optimizer.step()
            self._sign = self._signature()
        else:
            self._update.replay()

    def _signature(self) -> tuple[object, ...]:
        """Return the addresses of the optimizer's tensors, and its learning rates."""
        states, groups = self.optimizer.state.values(), self.optimizer.param_groups
        places = [value.data_ptr() for state in states for value in state.values()]
        places += [p.data_ptr() for group in groups for p in group["params"]]
        return (*places, *(group["lr"] for group in groups))

    def _compute(self, x: Tensor, y: Tensor) -> None:
        """Fill `grad`; keep the loss at the next place, and count how many were right."""
        self._results.add(*self.replica.write_gradient(x, y))

    def _try_out(self, indices: np.ndarray) -> None:
        """Compute the gradient of a batch as large as this one, and capture it if asked for."""
        rows = torch.from_numpy(indices).to(self.replica.params.device)
        x, y = (part.clone() for part in self.split.batch(indices))

        def work() -> None:
            if self.split.resident:
                for static, new in zip((x, y), self.split.batch(rows), strict=True):
                    static.copy_(new)
            if self.replica.masks:
                self.replica.masks.take(rows)
            self._compute(x, y)

        self._aside(work)
        if self.captured:
            self._refuse_waiting(work)
            self._gradients[len(indices)] = _Captured(self._capture(work), rows, x, y)

    def _refuse_waiting(self, work: Callable[[], object]) -> None:
        """Refuse work that synchronises with the GPU, which would break a capture."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that this is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            self._aside(work, times=1)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def _capture(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                work()
        except RuntimeError:
            # The generator still believes that it is being captured: let it start anew.
            device = self.replica.params.device
            new = torch.Generator(device).graphsafe_get_state()
            torch.cuda.default_generators[device.index].graphsafe_set_state(new)
            raise
        return graph

    def _aside(self, work: Callable[[], object], times: int = _WARM_UPS) -> None:
        """Run it a few times on another stream, which a capture requires."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(times):
                work()
        torch.cuda.current_stream().wait_stream(self._stream)
