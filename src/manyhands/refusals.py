"""What a run's options refuse of each other, before anything is started."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.config import RunConfig

PROFILED = 500  # steps that a profile holds at the most


def check(config: RunConfig) -> None:
    """Refuse options that contradict each other, or would be ignored."""
    _check_validation(config)
    _check_stream(config)
    _check_target(config)
    _check_features(config)
    _check_steps(config)
    _check_profile(config)


def _check_validation(config: RunConfig) -> None:
    """Refuse a part kept aside that is none, or that tells of private records."""
    if config.validation is None:
        if config.patience is not None:
            raise ConfigError(
                f"patience is {config.patience}, but nothing is kept aside to judge by; add "
                "validation, e.g. 0.1"
            )
    elif not 0 < config.validation < 1:
        raise ConfigError(
            f"validation is {config.validation}; expected a number above 0 and below 1"
        )
    elif config.privacy:
        raise ConfigError(
            f"validation is {config.validation} in a private run: how the model does on records "
            "of the training set tells about them; keep public data aside as the test set"
        )


def _check_stream(config: RunConfig) -> None:
    """Refuse a stream of what must be drawn from all rows."""
    if config.stream is None:
        return
    reason = ""
    if config.stream < config.batch_size:
        reason = f"a batch has {config.batch_size} examples, which it must hold"
    elif config.privacy:
        reason = "a private run draws Poisson samples of all records, not of a buffer"
    elif config.partition not in (None, "streamed"):
        reason = f"partition is {config.partition!r}; streams are divided by row groups"
    elif config.limit is not None or config.validation is not None or config.shares is not None:
        reason = "limit, validation and shares choose among all rows"
    elif config.device == "cuda":
        reason = "device is 'cuda', and streams feed the CPU only"
    elif config.on_failure == "continue":
        reason = "on_failure is 'continue', and nobody takes a dead worker's row groups"
    if reason:
        raise ConfigError(f"stream is {config.stream}, but {reason}: leave one of them out")


def _check_features(config: RunConfig) -> None:
    """Refuse what the strategy cannot do, with its reason."""
    for f in fields(config):
        reason = config.strategy.supports.lacks.get(f.name)
        value = getattr(config, f.name)
        if reason and value != f.default:
            raise ConfigError(
                f"{f.name} is {value!r}, but {config.strategy.name} {reason}; leave it out"
            )


def _check_steps(config: RunConfig) -> None:
    """Refuse what would do nothing, of what decides how a step is computed."""
    split = 1 if config.strategy.supports.whole_batches else config.workers
    if config.accumulate > max(1, config.batch_size // split):
        raise ConfigError(
            f"accumulate is {config.accumulate}, but a worker's part of a batch has "
            f"{config.batch_size // split} examples; expected that many pieces at the most"
        )
    if config.no_decay is not None and not getattr(config.optimizer, "weight_decay", 0.0):
        raise ConfigError(
            f"no_decay is {config.no_decay!r}, but the optimizer has no weight_decay; give "
            "sgd, adam or adamw with weight_decay, or leave it out"
        )
    if config.autocast and config.dtype != "float32":
        raise ConfigError(f"autocast is given with dtype {config.dtype}; expected float32")
    if ":" in config.schedule and config.warmup:
        raise ConfigError(
            f"warmup is {config.warmup}, but schedule is {config.schedule}, which decides the "
            "whole run; leave one of them out"
        )


def _check_target(config: RunConfig) -> None:
    """Refuse targets that nothing could reach."""
    if config.target is not None and config.target_accuracy is not None:
        raise ConfigError("target and target_accuracy are both given; expected one of them")
    first = (config.metric or "accuracy").split(",")[0]
    if config.target_accuracy is not None and first != "accuracy":
        raise ConfigError(
            f"target_accuracy is {config.target_accuracy}, but the metric is {first}; give "
            "target, or accuracy as the first metric"
        )


def _check_profile(config: RunConfig) -> None:
    """Refuse a profile of too many steps, or of a private run."""
    if not config.profile:
        return
    if config.max_steps is None or config.max_steps > PROFILED:
        raise ConfigError(
            f"profile is given with max_steps {config.max_steps}; every operation is kept, so "
            f"expected max_steps of {PROFILED} at the most"
        )
    if config.privacy:
        raise ConfigError(
            "profile is given in a private run, where how long a step took tells how many "
            "records were drawn; leave it out"
        )
