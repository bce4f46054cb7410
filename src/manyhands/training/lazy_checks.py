"""Refuses what cannot be done with data that is read when it is due, before workers start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.config.parse import LABELLED, parse_partition
from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.config.run import RunConfig
    from manyhands.data.lazy import Examples


def check(config: RunConfig, examples: Mapping[str, Examples]) -> None:
    """Refuse options that need the whole data, or another order than the loader's.

    Raises:
        ConfigError: With the option, its value, and what to do.
    """
    train = examples["train"]
    if train.batch_size not in (None, config.batch_size):
        raise ConfigError(
            f"batch_size is {config.batch_size}, but the DataLoader has {train.batch_size}; give "
            f"batch_size={train.batch_size}, or change the loader"
        )
    name, reason = _find_obstacle(config, train)
    if reason:
        value: object = {"private": True, "strategy": config.strategy.name}.get(name)
        value = getattr(config, name) if value is None else value
        raise ConfigError(f"{name} is {value!r}, but {reason}")


def _find_obstacle(config: RunConfig, train: Examples) -> tuple[str, str]:
    """Return an option that cannot work with this data, why, and what to do."""
    later = "the data is read when it is due, so"
    partition = config.partition
    if config.privacy:
        return "private", (
            f"{later} the time of reading would reveal which records were drawn; give arrays, or a "
            "Dataset without lazy"
        )
    if "tensors" in config.strategy.supports.lacks:
        return "strategy", (
            f"{later} several processes would have to read each batch; give arrays, or a Dataset "
            "without lazy"
        )
    if config.limit is not None:
        return "limit", f"{later} there is nothing to copy; give torch.utils.data.Subset"
    if partition and parse_partition(partition).kind in (*LABELLED, "by-id"):
        return "partition", f"{later} its labels and ids are not known beforehand; leave it out"
    processes = train.loader.get("num_workers")
    if processes and config.strategy.supports.shares_memory:
        return "strategy", (
            f"the loader has num_workers={processes}, and workers that share memory cannot start "
            "processes; leave num_workers out"
        )
    what = _find_order(train)
    for name, default in (("shares", None), ("balance", "none"), ("on_failure", None)):
        value = getattr(config, name)
        asked = value == "continue" if name == "on_failure" else value != default
        if asked and (what or processes):
            why = what or f"its {processes} processes read ahead"
            return name, f"{why}, so batches cannot be divided anew; leave one of them out"
    for name in ("partition", "validation"):
        if what and getattr(config, name) is not None:
            return name, f"{what}; leave {name} out, or give the loader's dataset with lazy=True"
    return "", ""


def _find_order(train: Examples) -> str:
    """Return what decides the order, if it is not the seed alone."""
    if not train.indexed:
        return "the stream decides the order"
    if train.sampler is not None:
        return f"the loader's {type(train.sampler).__name__} decides the order"
    return "the loader drops its last batch" if train.drop_last else ""
