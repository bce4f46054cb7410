"""Opens a run's data, and plans which examples each worker uses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.data import Plan, Stored, Streamed, StreamPlan
from manyhands.data.lazy import Examples, epoch_batches
from manyhands.data.lazy_batches import LazySplit, LazyStored
from manyhands.data.sampler_batch_plan import SampledPlan
from manyhands.data.stored import About
from manyhands.data.streaming import Feed, StreamSplit, window_rows

if TYPE_CHECKING:
    import numpy as np

    from manyhands.config.run import RunConfig


def open_data(
    config: RunConfig, folder: Path, examples: dict[str, Examples] | None = None
) -> Stored:
    """Open the data as the options say: limited, with a validation part, or as a stream.

    `examples` are the user's own, of data that is read when it is due.
    """
    about = About.read(folder)
    if config.stream is not None:
        return Streamed(folder, about, config.stream, config.dtype)
    if about.lazy:
        lazy = LazyStored(folder, about, examples or {}, config.dtype, config.seed)
        if config.validation:
            lazy.hold_out(config.validation, config.seed)
        return lazy
    data = Stored.open(folder, train_limit=config.limit, dtype=config.dtype)
    if config.validation:
        data.hold_out(config.validation, config.seed)
    return data


def plan_for_worker(config: RunConfig, data: Stored, rank: int) -> Plan | StreamPlan | SampledPlan:
    """Return the plan of one worker's examples."""
    train = data.train
    if isinstance(train, LazySplit) and train.examples.ordered:
        return sampled_plan(config, train.examples, rank)
    if isinstance(train, StreamSplit):
        return stream_plan(config, train.lengths, rank=rank, feed=train.feed)
    return make_plan(config, examples=len(train), rank=rank, labels=train.labels, ids=data.ids)


def sampled_plan(config: RunConfig, examples: Examples, rank: int) -> SampledPlan:
    """Return the plan of one worker where the source decides the order."""
    return SampledPlan(
        draw=partial(epoch_batches, examples, config.batch_size, config.seed),
        rank=rank,
        size=config.workers,
        whole_batches=config.strategy.supports.whole_batches,
    )


def stream_plan(
    config: RunConfig, lengths: np.ndarray, *, rank: int, feed: Feed | None = None
) -> StreamPlan:
    """Return the plan of one worker that streams row groups of these lengths."""
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


def make_plan(
    config: RunConfig,
    *,
    examples: int,
    rank: int,
    labels: np.ndarray | None = None,
    ids: np.ndarray | None = None,
) -> Plan:
    """Return the plan of one worker's examples; refuse data that cannot be divided."""
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
