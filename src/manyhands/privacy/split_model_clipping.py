"""Clipping for models split into stages, each with a part of every example's gradient."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from manyhands.errors import ConfigError
from manyhands.model.kernels.autograd import gradients
from manyhands.privacy.clipping import coefficients
from manyhands.privacy.layerwise import Layerwise, Trace

if TYPE_CHECKING:
    from manyhands.model.replica import Replica
    from manyhands.privacy.mechanism import Mechanism


Spending = Callable[[str, int | None], AbstractContextManager[None]]


class _PendingExamples(NamedTuple):
    """What is kept of some examples until their gradient norms are known."""

    inputs: list[Tensor]  # of each layer with parameters
    back: list[Tensor]  # the gradients by their outputs


class StageClipping:
    """One stage's passes in a private run; replaces `manyhands.strategies.pipeline.stage.Passes`.

    ```
    forward i, backward i:  as in plain training, of the sum of the losses; keep what entered each
                            layer and what came back to it; s ← s ∪ squared norms, (n,)
    finish:                 s ← Σ over the stages (all-reduce);  w_j ← min(1, C / √s_j)
                            g ← Σ_j w_j ∇f_j  for the layers here, without a second pass
                            g ← the noised mean of g (see `Mechanism`), each stage its own layers
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

    records = False

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
        self.passing: dict[int, tuple[Tensor, Trace]] = {}
        self.squares: list[Tensor] = []
        self.held: list[_PendingExamples] = []

    def begin(self) -> None:
        """Begin a step, and pay for it."""
        self.mechanism.pay()
        self.stage.grad.zero_()

    def forward(self, i: int, x: Tensor, *_: int) -> Tensor:
        """Return the stage's output; random layers draw from secret keys, not from a seed."""
        # What enters is a buffer of MPI's, which is used again before the step is over.
        x = x.detach().clone().requires_grad_(x.requires_grad)
        trace = self.clipped.forward(x)
        self.passing[i] = x, trace
        return trace.y

    def loss(self, i: int, target: Tensor, _: int) -> None:
        """Compute the losses of the last stage's output; they stay secret."""
        x, trace = self.passing[i]
        self.passing[i] = x, trace._replace(y=self.clipped.judge(trace, target))

    def backward(self, i: int, gradient: Tensor | None) -> Tensor:
        """Return the gradient of the stage's input; record its layers' gradient norms."""
        x, trace = self.passing.pop(i)
        own, entered = len(trace.outputs), [x] if x.requires_grad else []
        # Likewise the gradient is MPI's.
        gradient = torch.ones_like(trace.y) if gradient is None else gradient.clone()
        found = gradients(trace.y, gradient, [*trace.outputs, *entered])
        size = self.clipped.chunk_for(x)
        for start in range(0, len(x), size):
            some = slice(start, start + size)
            held = _PendingExamples([a[some] for a in trace.inputs], [g[some] for g in found[:own]])
            parts = self.clipped.parts(*held)
            self.squares.append(torch.stack([part.squares for part in parts]).sum(0))
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
        self.mechanism.cover(grad, examples, weight)

    def _clip(self, norms: Tensor) -> None:
        """Sum the kept gradients, each example clipped by its norm; norms: (n,)."""
        weights, finite = coefficients(norms, self.mechanism.terms.clip, self.mechanism.clipped.way)
        sizes = [len(some) for some in self.squares]
        goods = [None] * len(sizes) if finite is None else torch.split(finite, sizes)
        for held, factors, good in zip(self.held, torch.split(weights, sizes), goods, strict=True):
            inputs, back = held
            if good is not None:  # rare: without the others, since 0 × NaN is NaN
                inputs, back = [a[good] for a in inputs], [g[good] for g in back]
                factors = factors[good]
            self.clipped.sum(self.clipped.parts(inputs, back), factors, self.stage.grad)


def check(replica: Replica) -> None:
    """Refuse a model whose stages cannot clip layer by layer."""
    if reason := Layerwise.unknown(replica):
        raise ConfigError(
            f"{reason}, and a private pipeline can clip nothing else; use a chain of well-known "
            "layers, or another strategy"
        )
