"""Which data a worker of a run has, and which examples come next for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.data import Plan, Stored, Streamed, StreamPlan
from manyhands.data.stored import About
from manyhands.data.streaming import Feed, StreamSplit, window_rows

if TYPE_CHECKING:
    import numpy as np

    from manyhands.config.run import RunConfig


def opened(config: RunConfig, folder: Path) -> Stored:
    """Open the data as the run wants it: limited, with a part kept aside, or as a stream."""
    if config.stream is not None:
        return Streamed(folder, About.read(folder), config.stream, config.dtype)
    data = Stored.open(folder, train_limit=config.limit, dtype=config.dtype)
    if config.validation:
        data.keep_aside(config.validation, config.seed)
    return data


def planned_for(config: RunConfig, data: Stored, rank: int) -> Plan | StreamPlan:
    """Return which of the data's examples come next for one worker."""
    train = data.train
    if isinstance(train, StreamSplit):
        return streamed(config, train.lengths, rank=rank, feed=train.feed)
    return plan(config, examples=len(train), rank=rank, labels=train.labels, ids=data.ids)


def streamed(
    config: RunConfig, lengths: np.ndarray, *, rank: int, feed: Feed | None = None
) -> StreamPlan:
    """Return which examples come next for one worker that streams row groups of these lengths."""
    assert config.stream is not None
    return StreamPlan(
        lengths=lengths,
        batch_size=config.batch_size,
        window=window_rows(lengths, config.stream),
        rank=rank,
        size=config.workers,
        seed=config.seed,
        whole_batches=config.strategy.supports.whole_batches,
        epochs=config.epochs,
        feed=feed,
    )


def plan(
    config: RunConfig,
    *,
    examples: int,
    rank: int,
    labels: np.ndarray | None = None,
    ids: np.ndarray | None = None,
) -> Plan:
    """Return which examples come next for one worker; refuses what cannot be divided."""
    return Plan(
        config.partition_kind,
        examples=examples,
        batch_size=config.batch_size,
        rank=rank,
        size=config.workers,
        seed=config.seed,
        labels=labels,
        ids=ids if config.partition_kind == "by-id" else None,
        shares=config.shares,
        whole_batches=config.strategy.supports.whole_batches,
    )
