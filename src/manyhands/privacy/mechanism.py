"""The Gaussian mechanism on gradients: clip each example's, sum, pay, add noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from manyhands.data import batch_tree
from manyhands.privacy.clipping import PerExample
from manyhands.privacy.layerwise import Layerwise
from manyhands.privacy.rounding_lattice import Lattice, count_senders

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.config.run import RunConfig
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica
    from manyhands.privacy.ledger import Ledger
    from manyhands.privacy.noise import RoundedNormals
    from manyhands.privacy.sampling import PoissonPlan
    from manyhands.privacy.steps_rate_noise import Terms

_BLOCK = 1 << 17  # numbers that are noised at once: each takes 16 bytes meanwhile


class Observer(Protocol):
    """Sees each sum before and after its noise; only an audit has one (`experiments/audit`)."""

    def before(self, vector: Tensor, scale: float) -> None:
        """See a vector without noise; times `scale` it is the clipped sum."""

    def after(self, vector: Tensor, scale: float) -> None:
        """See the same vector with its noise, as it leaves; times `scale` it is a noised sum."""

    def close(self) -> None:
        """The run is over."""


class Mechanism:
    """One process's part of the Gaussian mechanism.

    ```
    sum(x, y):    g ← Σ_i  min(1, C / ‖∇f_i‖) ∇f_i          over this worker's sample, maybe empty
                  (other ways to clip: `clipping`)
                  g ← γ (round(g / γ) + round(N(0, s²/γ²))) / b
    ```

    b is the expected size of the sample, γ the step of the lattice (see `rounding_lattice`). With
    S = C + γ√d and a little more for float32, s is σS where others see the worker's own message,
    σS/√P where they see only the sum over P workers, and 0 where the masters round that sum and
    add σS themselves. The step is paid first.

    Guarantees:
        - Noise is added whatever the sample, and nothing but g leaves: no loss, no count.
        - g / γ·b is a whole number, and any whole number can come from any sum: no value proves
          what was summed. Where messages are added, their sum is exact.

    Args:
        config: Whose privacy and strategy decide how much noise is whose.
        replica: The whole model.
        terms: σ and C.
        noise: Where it is drawn from.
        example: Features like the model's own, to find out how it can be clipped; never trained on.
    """

    # An audit's: takes each new mechanism and its sampler, and returns the sampler to use.
    watch: ClassVar[Callable[[Mechanism, PoissonPlan], PoissonPlan] | None] = None
    observer: Observer | None = None

    def __init__(
        self,
        config: RunConfig,
        replica: Replica,
        terms: Terms,
        noise: RoundedNormals,
        example: Tree | None = None,
    ) -> None:
        assert config.privacy is not None
        self.replica, self.terms, self.noise = replica, terms, noise
        chunk, way = config.privacy.chunk_mb, config.privacy.clipping
        known = Layerwise.of(replica, chunk_mb=chunk, example=example, way=way)
        self.clipped = known or PerExample(replica, chunk_mb=chunk, way=way)
        exposure = "each" if config.privacy.distrust else config.strategy.exposure
        self.lattice: Lattice | None = None  # only tests leave the noise out
        self.deviation = self.of_masters = 0.0
        if terms.noise_multiplier:
            self.lattice = Lattice.of_run(
                config,
                terms,
                dim=replica.dim,
                digits=24 if replica.params.dtype == torch.float32 else 53,
            )
            whole = terms.noise_multiplier * self.lattice.sensitivity
            whole /= math.sqrt(count_senders(config))
            self.deviation = 0.0 if exposure == "masters" else whole  # on this worker's sum
            self.of_masters = whole if exposure == "masters" else 0.0
        self.ledger: Ledger | None = None
        self.last: int | None = None  # the step at which the budget is spent, if before the end

    def gradient(self, x: Tree, y: Tree, expected: float, weight: float = 1.0) -> None:
        """Fill the replica's `grad` with the noised mean over a sample of that expected size.

        Args:
            x: The sample's features.
            y: Its targets.
            expected: The sample's expected size.
            weight: The mean's weight among those of all workers; it is multiplied by it.
        """
        self.pay()
        grad = self.replica.grad
        grad.zero_()
        if batch_tree.count_examples(x):
            self.clipped.add(x, y, self.terms.clip, grad)
        self.cover(grad, expected, weight)

    def pay(self) -> None:
        """Pay for the step that begins."""
        if self.ledger:
            self.ledger.pay(1)

    def cover(self, clipped: Tensor, expected: float, weight: float = 1.0) -> None:
        """Turn a worker's clipped sum into the noised mean that `gradient` describes."""
        divisor = expected / weight
        if self.observer:
            self.observer.before(clipped, 1.0)
        clipped.div_(divisor)
        self._add_noise(clipped, self.deviation / divisor)
        if self.observer:
            self.observer.after(clipped, divisor)

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
        if self.observer:
            self.observer.before(mean, expected)
        self._add_noise(mean, self.of_masters / expected)
        if self.observer:
            self.observer.after(mean, expected)

    def _add_noise(self, vector: Tensor, deviation: float) -> None:
        """Round a vector onto the lattice and add noise of that deviation, in whole steps."""
        if not deviation or not self.lattice:
            return
        spread = (self.deviation or self.of_masters) / self.lattice.step  # of the noise, in steps
        step, limit = deviation / spread, self.lattice.limit
        if limit:
            step = _power_of_two(step)
        for start in range(0, len(vector), _BLOCK):
            part = vector[start : start + _BLOCK]
            drawn = torch.from_numpy(self.noise.draw(len(part), spread)).to(vector.device)
            multiples = part.double().div_(step).round_()
            if limit:
                multiples.clamp_(-limit, limit)
            part.copy_(multiples.add_(drawn).mul_(step))

    def lattice_facts(self) -> dict[str, float]:
        """Return for the record what the noise multiplier multiplies, and the step of the noise."""
        if not self.lattice:
            return {}
        return {"sensitivity": self.lattice.sensitivity, "lattice_step": self.lattice.step}

    def close(self) -> None:
        """Close the ledger: steps that were paid but not drawn do not count."""
        if self.ledger:
            self.ledger.close()
        if self.observer:
            self.observer.close()

    def spent(self) -> dict[str, Any]:
        """Return the ledger's state for a checkpoint."""
        return {"run": self.ledger.run, "spent": self.ledger.spent} if self.ledger else {}


def _power_of_two(step: float) -> float:
    """Return the power of two that a step is but for rounding: multiples of it add up exactly."""
    power = 2.0 ** round(math.log2(step))
    assert math.isclose(step, power, rel_tol=1e-9), f"messages of {step} do not add up exactly"
    return power
