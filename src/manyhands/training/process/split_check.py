"""Detects a loss over the whole batch, such as InfoNCE, which splitting a batch changes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from manyhands.data import batch_tree

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig
    from manyhands.data.batch_tree import Tree
    from manyhands.model.replica import Replica

_TRIED = 8  # examples, of which a few tell as much as many
_ROUNDING = 1e-3  # relative difference of two losses that rounding may explain


def count_pieces(config: RunConfig) -> int:
    """Return into how many parts a run splits the examples of one update."""
    split = 1 if config.strategy.supports.whole_batches else config.workers
    return split * config.accumulate * config.strategy.count_parts()


def compare_halves(replica: Replica, batch: tuple[Tree, Tree]) -> tuple[float, float] | None:
    """Return the loss of some examples and the mean loss of their halves, if they differ.

    The model is in evaluation mode, so dropout and BatchNorm make no difference. None where the two
    agree, or nothing can be told: the loss draws random numbers, fails, or is not finite.
    """
    count = min(_TRIED, batch_tree.count_examples(batch[0])) // 2 * 2
    if count < 4:
        return None
    parts = (slice(count), slice(count), slice(count // 2), slice(count // 2, count))
    autocast, replica.autocast = replica.autocast, False
    try:
        with replica.undisturbed(), torch.no_grad():
            replica.module.eval()
            values = [
                float(replica.objective(replica.module, *batch_tree.take_examples(*batch, part))[0])
                for part in parts
            ]
    except Exception:  # so few examples may be too few for it
        return None
    finally:
        replica.autocast = autocast
        replica.module.train()
    whole, again, first, second = values
    mean = (first + second) / 2
    if whole != again or not all(map(math.isfinite, values)):
        return None
    return None if math.isclose(whole, mean, rel_tol=_ROUNDING, abs_tol=1e-6) else (whole, mean)


def warning(name: str, losses: tuple[float, float], parts: int) -> str:
    """Return the warning for a loss that splitting a batch changes."""
    whole, mean = losses
    return (
        f"loss {name} is no mean over examples: {whole:.4g} for a few of them, and {mean:.4g} as "
        f"the mean of their halves. This run computes it on {parts} parts of each batch, so the "
        "result differs from one worker's; for that, use workers=1 without accumulate, or raise "
        "batch_size (docs/tasks.md)"
    )
