"""The Gaussian mechanism on gradients: clip each example's, sum, pay, add noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from manyhands.data import batch_tree
from manyhands.privacy.clipping import PerExample
from manyhands.privacy.layerwise import Layerwise

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica
    from manyhands.privacy.keys import NormalNoise
    from manyhands.privacy.ledger import Ledger
    from manyhands.privacy.terms import Terms


class Mechanism:
    """One process's part of the Gaussian mechanism.

    ```
    sum(x, y):    g ← Σ_i  min(1, C / ‖∇f_i‖) ∇f_i          over this worker's sample, maybe empty
                  g ← (g + N(0, s²)) / b                    b: the expected size of the sample
    ```

    s is σC where others see the worker's own message, σC/√P where they see only the sum over P
    workers, and 0 where the masters add σC to that sum themselves. The step is paid first.

    Guarantees: noise is added whatever the sample, and nothing but g leaves: no loss, no count.

    Args:
        config: Whose privacy and strategy decide how much noise is whose.
        replica: The model.
        terms: σ and C.
        noise: Where it is drawn from.
        example: Features like the model's own, to find out how it can be clipped; never trained on.
    """

    def __init__(
        self,
        config: RunConfig,
        replica: Replica,
        terms: Terms,
        noise: NormalNoise,
        example: Tree | None = None,
    ) -> None:
        assert config.privacy is not None
        self.replica, self.terms, self.noise = replica, terms, noise
        chunk = config.privacy.chunk_mb
        known = Layerwise.of(replica, chunk_mb=chunk, example=example)
        self.clipped = known or PerExample(replica, chunk_mb=chunk)
        whole = 0.0 if terms.noise_multiplier == 0 else terms.noise_multiplier * terms.clip
        exposure = "each" if config.privacy.distrust else config.strategy.exposure
        parts = {"each": 1.0, "sum": 1 / math.sqrt(config.workers), "masters": 0.0}
        self.deviation = whole * parts[exposure]  # of the noise on this worker's sum
        self.of_masters = whole if exposure == "masters" else 0.0
        self.ledger: Ledger | None = None
        self.last: int | None = None  # the step at which the budget is spent, if before the end

    def gradient(self, x: Tree, y: Tree, expected: float) -> None:
        """Fill the replica's `grad` with the noised mean over a sample of that expected size."""
        self.pay()
        grad = self.replica.grad
        grad.zero_()
        if batch_tree.count_examples(x):
            self.clipped.add(x, y, self.terms.clip, grad)
        self.cover(grad, expected)

    def pay(self) -> None:
        """Pay for the step that begins."""
        if self.ledger:
            self.ledger.pay(1)

    def cover(self, clipped: Tensor, expected: float) -> None:
        """Turn a worker's clipped sum into the noised mean over a sample of that expected size."""
        self._add_noise(clipped, self.deviation)
        clipped.div_(expected)

    def try_out(self, x: Tree, y: Tree) -> None:
        """Do a step's work on any examples, for timing: nothing is paid, drawn or kept."""
        self.clipped.add(x, y, self.terms.clip, self.replica.grad)
        self.replica.grad.zero_()

    def guard(self, mean: Tensor, expected: float) -> None:
        """Add a master's noise to a mean of all workers' sums, before it is sent.

        Args:
            mean: Any part of it.
            expected: The examples expected behind it, over all workers.
        """
        self._add_noise(mean, self.of_masters / expected)

    def _add_noise(self, vector: Tensor, deviation: float) -> None:
        if deviation:
            kind = np.float32 if vector.dtype == torch.float32 else np.float64
            drawn = self.noise.draw(len(vector), kind)
            vector.add_(torch.from_numpy(drawn).to(vector.device), alpha=deviation)

    def close(self) -> None:
        """Close the ledger: steps that were paid but not drawn do not count."""
        if self.ledger:
            self.ledger.close()

    def spent(self) -> dict[str, Any]:
        """Return the ledger's state for a checkpoint."""
        return {"run": self.ledger.run, "spent": self.ledger.spent} if self.ledger else {}
