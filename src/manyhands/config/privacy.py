"""What a private run promises and how: the options of `Privacy`, checked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from manyhands import value_checks
from manyhands.config.option_declaration import (
    INNER_PART,
    POSITIVE,
    SEED,
    Tags,
    check_declared,
    option,
)
from manyhands.errors import ConfigError
from manyhands.value_checks import whole

# Where workers share one secret sample of the whole set, and where each samples its own records.
SHARED, DISJOINT = "balanced", "by-id"
ClippingWay = Literal["flat", "automatic", "per-layer"]
_ACCOUNTED = Tags(commands=("privacy",))  # what the accountant's answer depends on


def power_of_ten_below(examples: int) -> float:
    """Return the largest power of ten that is less than 1/n."""
    return float(f"1e-{len(str(examples))}")


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Train with differential privacy (DP-SGD, Abadi et al. 2016, arXiv 1607.00133).

    Give `epsilon`, and the noise is solved for; or `noise_multiplier`, and epsilon is stated. One
    record blanked in its place changes the distribution of all that the run publishes by no more
    than (epsilon, delta); the number of records counts as public.

    Examples:
        >>> import manyhands as mh
        >>> private = mh.Privacy(epsilon=3.0, clip=0.5)  # for mh.fit(…, privacy=private)
        >>> private.resolve_delta(60_000)
        1e-05
    """

    epsilon: float | None = option(
        None,
        "privacy budget of the whole run; the noise is solved for it",
        POSITIVE,
        tags=Tags(commands=("privacy",), common=True),
    )
    delta: float | None = option(
        None,
        "delta of (epsilon, delta), below 1/n for n records; by default the largest power of ten "
        "below 1/n",
        INNER_PART,
        tags=_ACCOUNTED,
    )
    clip: float = option(
        1.0, "clip each example's gradient to this norm", POSITIVE, tags=_ACCOUNTED
    )
    clipping: ClippingWay = option(
        "flat",
        "flat: shorten each example's whole gradient to clip; automatic: scale it to about clip; "
        "per-layer: shorten each layer's part to an equal share of clip",
        tags=Tags(commands=("privacy",), hashed="if changed"),
    )
    noise_multiplier: float | None = option(
        None,
        "sigma, the noise's standard deviation divided by clip; instead of epsilon",
        POSITIVE,
        tags=_ACCOUNTED,
    )
    distrust: bool = option(
        False,
        "trust no other process: each worker adds the whole noise itself",
        tags=_ACCOUNTED,
    )
    secure_noise: bool = option(
        False,
        "draw samples and noise from a cryptographic generator, safe against rounding attacks",
    )
    preprocessing: Literal["none", "public"] = option(
        "none", "public: declare that values learned from the data in preparation may be published"
    )
    init_public: bool = option(
        False,
        "declare that no training record influenced the initial weights, from init or your model; "
        "otherwise weights from a file must come from a private run on the same data, whose cost "
        "is added",
        tags=Tags(hashed="if changed", without=("audit", "predict")),
    )
    chunk_mb: int = option(
        256, "memory for gradients of single examples, in megabytes", whole(1, 2**20)
    )
    fixed_key: int | None = option(
        None,
        "makes sample and noise predictable, for tests and profiles; the run is NOT PRIVATE",
        SEED,
    )

    def __post_init__(self) -> None:
        check_declared(self)
        value_checks.one_of(("none", "public"), preprocessing=self.preprocessing)
        value_checks.one_of(get_args(ClippingWay), clipping=self.clipping)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            which = "neither" if self.epsilon is None else "both"
            raise ConfigError(
                f"{which} of epsilon and noise_multiplier given; expected one of them: the other "
                "follows from it"
            )
        if self.secure_noise and self.fixed_key is not None:
            raise ConfigError("fixed_key is given with secure_noise; leave one of them out")

    def resolve_delta(self, examples: int) -> float:
        """Return delta for so many records.

        Raises:
            ConfigError: If it is 1/n or more: publishing one record whole would keep to it.
        """
        largest = power_of_ten_below(examples)
        if self.delta is None:
            return largest
        if self.delta >= 1 / examples:
            raise ConfigError(
                f"delta is {self.delta:g} for {examples:,} records; expected less than 1/n: with "
                "more, a run that publishes one record whole would be called private. Give "
                f"{largest:g} or less, or leave it out"
            )
        return self.delta

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
