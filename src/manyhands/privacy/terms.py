"""The terms of a private run: steps, rate and noise, fixed before the first step is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig

RELATION = "one record added or removed; the number of records counts as public"
# Where a record's place decides who has it, or whether it takes part, another one that came or went
# would move it.
IN_PLACE = "one record blanked in its place; the number of records and their order count as public"
REDACTED = (
    "its message was printed when it failed, and is kept in no record: it may tell of the data"
)
SAMPLER = {
    True: "Poisson, one secret sample of all records for each step",
    False: "Poisson, every worker its own secret sample of its own records for each step",
}
TRUST = {
    "alone": "the process that trains is trusted; what it publishes is private",
    "sum": "the workers trust one another: partial sums on their way carry less noise",
    "stages": "the stages trust one another: activations and their gradients carry no noise",
    "masters": "the workers trust the masters, which see sums of clipped gradients without noise",
    "each": "nobody is trusted: all that a worker sends carries the whole noise",
}


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


def solve(config: RunConfig, examples: int) -> Terms:
    """Return a run's terms: sigma as given, or the least that keeps the budget."""
    assert config.privacy is not None
    privacy = config.privacy
    steps = planned_steps(config, examples)
    q, sigma = rate(config, examples), privacy.noise_multiplier
    if sigma is None:
        from manyhands.privacy import accountant

        assert privacy.epsilon is not None
        sigma = accountant.noise_multiplier(privacy.epsilon, privacy.delta, q, steps)
    return Terms(
        steps=steps, rate=q, noise_multiplier=sigma, clip=privacy.clip, delta=privacy.delta
    )


def statement(
    config: RunConfig, terms: Terms, *, ids: bool = False, learned: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the run's privacy guarantee for its record: what holds, and by which accountant.

    `ids` says whether the data brings ids of its records; otherwise their rows are their ids.
    `learned` is what a preparation learned from the records, where that is known.
    """
    from manyhands.privacy import accountant

    assert config.privacy is not None
    privacy = config.privacy
    # Where workers have disjoint records, one record touches the steps of one worker only, and all
    # workers have the same terms: what each costs is what all cost.
    event = accountant.Event(terms.steps, terms.rate, terms.noise_multiplier)
    exposure = "each" if privacy.distrust else config.strategy.exposure
    trust: str = "alone" if exposure == "sum" and config.workers == 1 else exposure
    if config.strategy.supports.beside == "stage":
        trust = "stages"
    said = "none is stated; this is not checked"
    if learned is not None and not learned:
        said = "with declared values only; nothing was learned from the records"
    elif privacy.preprocessing == "public":
        said = "; ".join(["stated to be public", *(learned or ())])
    placed = config.limit is not None or (config.partition_kind == "by-id" and not ids)
    return {
        "private": privacy.fixed_key is None,
        "relation": IN_PLACE if placed else RELATION,
        "trust": TRUST[trust],
        "sampler": SAMPLER[config.partition_kind == "balanced"],
        **terms.as_dict(),
        "epsilon_pld": accountant.epsilon(event, terms.delta, "pld"),
        "epsilon_rdp": accountant.epsilon(event, terms.delta, "rdp"),
        "preprocessing": said,
        "secure_noise": privacy.secure_noise,
    }
