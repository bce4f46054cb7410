"""The lattice of a private run: clipped sums and noise are whole multiples of one step.

Noise in floating point reaches other values from one sum than from another, and a reader of the
messages sees which sum it was (Mironov 2012). Multiples of a step γ have no such gaps: k + z, with
whole numbers k of the sum and z of the noise, reaches every whole number from every k.

**One message.** k = round(g / γ), and z = round(Y) with Y ~ N(0, t²). Rounding commutes with whole
shifts: k + round(Y) = round(k + Y). So the message is a function of γk + N(0, γ²t²): the Gaussian
mechanism, whose accountant holds as it is.

**Sensitivity.** Without one record's gradient, of a norm up to C, g moves by C at most, and by
rounding each of d numbers γk moves by γ√d more. Neighbouring sets differ in one record that is
replaced by nothing *in its place*, so the sums of other workers stay. σ multiplies all of it.

**A sum of P messages**, z_w = round(Y_w), Y_w ~ N(0, t²). With r_w = Y_w − z_w in [−½, ½] and
S = Σ Y_w ~ N(0, Pt²):  Σ z_w = S − Σ r_w = round(S − r_1 − … − r_{P−1}), as r_P is what rounding
leaves. Given S, the vector (Y_1 … Y_{P−1}) is normal with covariance t²(I − 11ᵀ/P), so by Poisson
summation the density of (r_1 … r_{P−1}) differs from 1, the uniform one, by at most
    η = Σ_{m ≠ 0} exp(−2π²t² (|m|² − (Σ_i m_i)²/P))  ≤  (1 + 2 Σ_{j ≥ 1} exp(−2π²t²j²/P))^{P−1} − 1.
Uniform r that are independent of S make Σ k_w + Σ z_w a function of Σ k_w + N(0, Pt²) and of coins.
`choose` keeps t²/P ≥ 64, where η < P · 10⁻⁵⁴⁸: nothing beside any δ. (Kairouz, Liu & Steinke 2021,
arXiv 2102.06387, have the same series for sums of discrete Gaussians.)

That is about the *exact* sum. So where messages are added on their way, one step of the message is
a power of two, and clipped sums are limited (which moves no two of them apart) so that all partial
sums are whole numbers that the message's type holds: less than 2²⁴ steps in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig
    from manyhands.privacy.steps_rate_noise import Terms

FINE, COARSE = 2.0**-10, 2.0**-7  # γ√d over C, at the most: alone, and where float32 is added up
# Of C: room for what rounding inside the clipped sum itself may move. A record's gradient counts as
# a function of the record alone. Kernels do not promise that: its last bits may depend on how many
# records are computed with it, which is less than this room unless a layer's sign hangs on them.
ARITHMETIC = 2.0**-10
_SMOOTH = 8  # t/√P, at the least
_TAIL = 16  # deviations of noise that fit beside the largest sum: beyond are 10⁻⁵⁷ of it


@dataclass(frozen=True, kw_only=True)
class Lattice:
    """The steps in which a private run counts.

    Attributes:
        step: γ, in the units of a clipped sum.
        sensitivity: The most that one record moves a sum on the lattice: what σ multiplies.
        limit: The largest multiple of a worker's sum, either way; None where any is exact.
    """

    step: float
    sensitivity: float
    limit: int | None = None

    @classmethod
    def of_run(cls, config: RunConfig, terms: Terms, *, dim: int, digits: int) -> Lattice:
        """Return the lattice of a private run; arguments and errors as those of `choose`."""
        return cls.choose(
            clip=terms.clip,
            noise_multiplier=terms.noise_multiplier,
            dim=dim,
            senders=count_senders(config),
            batch=config.batch_size,
            digits=digits,
        )

    @classmethod
    def choose(
        cls,
        *,
        clip: float,
        noise_multiplier: float,
        dim: int,
        senders: int = 1,
        batch: int = 1,
        digits: int = 24,
    ) -> Lattice:
        """Return the lattice for a model and its noise.

        Args:
            clip: C.
            noise_multiplier: σ, of the whole sum.
            dim: d, the parameters of the whole model.
            senders: P, the workers whose messages are added on their way; 1 if none are.
            batch: What the sum over all of them is divided by beforehand.
            digits: Binary digits of a message's numbers.

        Raises:
            ConfigError: If messages of so much noise cannot be added up exactly.
        """
        root = math.sqrt(dim)
        if senders == 1:
            return cls(step=FINE * clip / root, sensitivity=clip * (1 + ARITHMETIC + FINE))
        room = 1 << (digits - 1)  # half for the sum, half for the noise
        if noise_multiplier * root >= room / _TAIL:
            raise ConfigError(
                f"noise_multiplier is {noise_multiplier:g} for {dim:,} parameters, so sums of "
                f"messages with {digits} binary digits would not be exact: {noise_multiplier:g} × "
                f"√{dim} is {noise_multiplier * root:,.0f}; expected less than {room // _TAIL:,}. "
                "Give less noise, or a strategy that does not add messages up, such as sequential, "
                "or averaging with partition by-id"
            )
        most = min((COARSE if digits <= 24 else FINE) / root, noise_multiplier / _SMOOTH / senders)
        least = noise_multiplier * (1 + ARITHMETIC) / (room / _TAIL - noise_multiplier * root)
        step = batch * 2.0 ** math.floor(math.log2(most * clip / batch))
        while step < least * clip:
            step *= 2
        sensitivity = clip * (1 + ARITHMETIC) + step * root
        return cls(step=step, sensitivity=sensitivity, limit=room // senders)


def count_senders(config: RunConfig) -> int:
    """Return P, the workers of a private run whose messages are added on their way; 1 if none."""
    assert config.privacy is not None
    added = config.strategy.exposure == "sum" and not config.privacy.distrust
    return config.workers if added else 1
