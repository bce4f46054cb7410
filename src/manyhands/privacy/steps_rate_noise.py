"""The terms of a private run: steps, rate and noise, fixed before the first step is taken."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig
    from manyhands.privacy.accountant import Event

REDACTED = (
    "its message was printed when it failed, and is kept in no record: it may tell of the data"
)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """One worker's T steps, as the accountant needs them.

    Attributes:
        steps: T, the most that a worker will take.
        rate: q, the probability that a record takes part in a step of the worker that has it.
        noise_multiplier: σ, over the clipping norm.
        clip: C, the clipping norm.
        delta: δ.
    """

    steps: int
    rate: float
    noise_multiplier: float
    clip: float
    delta: float

    def as_dict(self) -> dict[str, Any]:
        """Return them as the ledger and the record hold them."""
        return asdict(self)


def steps_per_epoch(config: RunConfig, examples: int) -> Fraction:
    """Return the steps of an epoch, in which a record is expected to take part once.

    Seldom a whole number: 60,000 records in batches of 512 are 117 3/16, and 40 epochs 4687 steps.
    """
    return max(Fraction(1), Fraction(examples, _expected_examples(config)))


def planned_steps(config: RunConfig, examples: int) -> int:
    """Return a worker's steps in the whole run."""
    total = int(config.epochs * steps_per_epoch(config, examples))
    return min(total, config.max_steps or total)


def _expected_examples(config: RunConfig) -> int:
    """Return the examples expected in one step of every worker."""
    return config.batch_size * (config.workers if config.strategy.supports.whole_batches else 1)


def rate(config: RunConfig, examples: int) -> float:
    """Return the probability that a record takes part in a step."""
    whole = config.strategy.supports.whole_batches
    found = _expected_examples(config) / examples
    if found > 1:
        each = f" for each of {config.workers} workers" if whole else ""
        raise ConfigError(
            f"batch_size is {config.batch_size}{each}, more than the {examples} training examples "
            "that a private run samples from; lower it"
        )
    return found


def solve(config: RunConfig, examples: int, before: tuple[Event, ...] = ()) -> Terms:
    """Return a run's terms: sigma as given, or the least that keeps the budget.

    `before` has been spent on the initial weights, and is part of the budget.
    """
    assert config.privacy is not None
    privacy = config.privacy
    steps = planned_steps(config, examples)
    q, sigma = rate(config, examples), privacy.noise_multiplier
    delta = privacy.resolve_delta(examples)
    if sigma is None:
        from manyhands.privacy import accountant

        assert privacy.epsilon is not None
        sigma = accountant.noise_multiplier(privacy.epsilon, delta, q, steps, before)
    return Terms(steps=steps, rate=q, noise_multiplier=sigma, clip=privacy.clip, delta=delta)
