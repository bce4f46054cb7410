"""What a private run promises and how: the options of `Privacy`, checked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from manyhands import validate
from manyhands.config.declare import INNER_PART, POSITIVE, SEED, Tags, check_declared, option
from manyhands.errors import ConfigError
from manyhands.validate import whole

# Where workers share one secret sample of the whole set, and where each samples its own records.
SHARED, DISJOINT = "balanced", "by-id"
_ACCOUNTED = Tags(commands=("privacy",))  # what the accountant's answer depends on


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Train with differential privacy (DP-SGD, Abadi et al. 2016, arXiv 1607.00133).

    Give `epsilon`, and the noise is solved for; or `noise_multiplier`, and epsilon is stated. One
    record more or less changes the distribution of all that others see of the run by no more than
    (epsilon, delta); the number of records counts as public.
    """

    epsilon: float | None = option(
        None, "the budget: what the whole run may spend; solves sigma", POSITIVE, tags=_ACCOUNTED
    )
    delta: float = option(1e-5, "the delta of (epsilon, delta)", INNER_PART, tags=_ACCOUNTED)
    clip: float = option(
        1.0, "bound on the norm of one example's whole gradient", POSITIVE, tags=_ACCOUNTED
    )
    noise_multiplier: float | None = option(
        None,
        "sigma: the noise's standard deviation over clip; instead of epsilon",
        POSITIVE,
        tags=_ACCOUNTED,
    )
    distrust: bool = option(
        False,
        "let each worker add all of the noise: no worker and no master is trusted",
        tags=_ACCOUNTED,
    )
    secure_noise: bool = option(
        False, "draw sample and noise from a cryptographic generator, safe against rounding"
    )
    preprocessing: Literal["none", "public"] = option(
        "none", "public: what was learned from the data while preparing it may be known to all"
    )
    chunk_mb: int = option(
        256, "megabytes that gradients of single examples may take at a time", whole(1, 2**20)
    )
    fixed_key: int | None = option(
        None,
        "for tests and profiles only: a sample and noise that can be guessed; the run is NOT "
        "PRIVATE",
        SEED,
    )

    def __post_init__(self) -> None:
        check_declared(self)
        validate.one_of(("none", "public"), preprocessing=self.preprocessing)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            given = "neither" if self.epsilon is None else "both"
            raise ConfigError(
                f"{given} of epsilon and noise_multiplier given; expected one of them: the other "
                "follows from it"
            )
        if self.secure_noise and self.fixed_key is not None:
            raise ConfigError("fixed_key is given with secure_noise; leave one of them out")

    def check_data(self, learned: Sequence[str] | None) -> None:
        """Refuse records that were prepared with what was learned from them."""
        if learned and self.preprocessing == "none":
            raise ConfigError(
                f"the data was prepared with what its own records say ({'; '.join(learned)}), "
                "which the privacy statement would not cover; declare bounds and values in the "
                "recipe, or state with preprocessing=public that all may know them"
            )

    def partitions(self, *, beside: str, exposure: str) -> tuple[str, ...]:
        """Return how the data may be divided, what is used where nothing is said first.

        Args:
            beside: What processes are that the strategy adds to its workers.
            exposure: What others see of a worker's gradient.
        """
        if beside == "stage":
            return (SHARED,)  # all stages must draw the same sample
        trusted = exposure == "sum" and not self.distrust
        return (SHARED, DISJOINT) if trusted else (DISJOINT,)
