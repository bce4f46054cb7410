"""Clipping where the model is cut into stages, each with a part of every example's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from manyhands.errors import ConfigError
from manyhands.privacy.clipping import coefficients
from manyhands.privacy.layerwise import Layerwise, Trace

if TYPE_CHECKING:
    from manyhands.privacy.mechanism import Mechanism
    from manyhands.replica import Replica


Spending = Callable[[str, int | None], AbstractContextManager[None]]


class _Held(NamedTuple):
    """What a micro-batch leaves behind until the norms of its gradients are known."""

    inputs: list[Tensor]  # of each layer with parameters
    back: tuple[Tensor, ...]  # the gradients by their outputs


class Staged:
    """One stage's passes in a private run, instead of plain autograd's (`strategies/stage.py`).

    ```
    forward i, backward i:  as in plain training, of the sum of the losses; keep what entered each
                            layer and what came back to it; s ← s ∪ squared norms, (n,)
    finish:                 s ← Σ over the stages (all-reduce);  w_j ← min(1, C / √s_j)
                            g ← Σ_j w_j ∇f_j  for the layers here, without a second pass
                            g ← (g + N(0, σ²C²/W)) / b,  each stage the noise of its own layers
    ```

    Guarantees:
        - An example is clipped by the length of its whole gradient, as if the model were not cut.
        - Gradients of single examples take no more memory than `chunk_mb`, or one example's; what
          is kept of a sample is activations and their gradients.
        - Losses stay unknown.

    Args:
        mechanism: Pays, and adds the noise.
        stage: What this process holds of the model.
        total: Sums a vector over the stages of this pipeline, in place.
        chunk_mb: See `Privacy`.
    """

    tells = False

    def __init__(
        self,
        mechanism: Mechanism,
        stage: Replica,
        total: Callable[[Tensor], None],
        *,
        chunk_mb: int,
    ) -> None:
        clipped = Layerwise.of(stage, chunk_mb=chunk_mb)
        assert clipped, "a chain of known layers has known parts"
        self.mechanism, self.stage, self.total, self.clipped = mechanism, stage, total, clipped
        self.size = 1  # of a chunk; known when an example is
        self.passing: dict[int, tuple[Tensor, Trace]] = {}
        self.squares: list[Tensor] = []
        self.held: list[_Held] = []

    def begin(self) -> None:
        """Begin a step: pay for it."""
        self.mechanism.pay()
        self.stage.grad.zero_()

    def forward(self, i: int, x: Tensor, *_: int) -> Tensor:
        """Return what leaves; what random layers draw follows from secret keys, not from a seed."""
        # What enters is a buffer of MPI's, which is used again before the step is over.
        x = x.detach().clone().requires_grad_(x.requires_grad)
        self.size = self.clipped.chunk_for(x)
        trace = self.clipped.forward(x)
        self.passing[i] = x, trace
        return trace.y

    def judge(self, i: int, target: Tensor, _: int) -> None:
        """Take the examples' losses for what leaves the last stage; nobody is told."""
        x, trace = self.passing[i]
        self.passing[i] = x, trace._replace(y=self.clipped.judge(trace, target))

    def backward(self, i: int, gradient: Tensor | None) -> Tensor:
        """Return the gradient by what entered; note the norms of what the layers here have."""
        x, trace = self.passing.pop(i)
        entered = [x] if x.requires_grad else []
        gradient = None if gradient is None else gradient.clone()  # likewise MPI's
        found = torch.autograd.grad(trace.y, [*trace.outputs, *entered], gradient)
        held = _Held(trace.inputs, found[: len(trace.outputs)])
        for part in self._chunks(len(x)):
            parts = self.clipped.parts(*_some(held, part))
            self.squares.append(torch.stack([p.squares for p in parts]).sum(0))
        self.held.append(held)
        return found[-1] if entered else x

    def finish(self, examples: float, weight: float, spending: Spending) -> None:
        """Leave this stage's part of the noised mean in `grad`, times the weight. Collective."""
        grad = self.stage.grad
        if self.held:  # the same on all stages, which have drawn the same sample
            squares = torch.cat(self.squares)
            with spending("wait", None):
                self.total(squares)
            with spending("backward", None):
                self._clip(squares.sqrt())
        self.squares, self.held = [], []
        self.mechanism.cover(grad, examples)
        grad.mul_(weight)

    def _clip(self, norms: Tensor) -> None:
        """Add up what is held, each example clipped by its norm; norms: (n,)."""
        weights, finite = coefficients(norms, self.mechanism.terms.clip)
        done = 0
        for held in self.held:
            count = len(held.back[0])
            for part in self._chunks(count):
                stop = done + min(part.stop, count) - part.start
                kept = None if finite is None else finite[done:stop]
                self._add(*_some(held, part), weights[done:stop], kept)
                done = stop

    def _add(
        self,
        inputs: Sequence[Tensor],
        back: Sequence[Tensor],
        weights: Tensor,
        finite: Tensor | None,
    ) -> None:
        if finite is not None:  # rare: without the others, since 0 × NaN is NaN
            inputs, back = [a[finite] for a in inputs], [g[finite] for g in back]
            weights = weights[finite]
        self.clipped.sum(self.clipped.parts(inputs, back), weights, self.stage.grad)

    def _chunks(self, count: int) -> list[slice]:
        return [slice(start, start + self.size) for start in range(0, count, self.size)]


def _some(held: _Held, part: slice) -> tuple[list[Tensor], list[Tensor]]:
    return [a[part] for a in held.inputs], [g[part] for g in held.back]


def check(replica: Replica) -> None:
    """Refuse a model whose stages could not clip layer by layer."""
    if reason := Layerwise.unknown(replica):
        raise ConfigError(
            f"{reason}, and a private pipeline can clip nothing else; use a chain of well-known "
            "layers, or another strategy"
        )
