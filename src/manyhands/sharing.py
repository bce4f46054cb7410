"""Which examples come next for one worker of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.data import Plan

if TYPE_CHECKING:
    import numpy as np

    from manyhands.config import RunConfig


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
