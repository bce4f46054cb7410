"""Where a model is cut into stages: by measured time, by parameters, or where the user says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from manyhands.errors import ConfigError, nearest
from manyhands.model.kernels.autograd import backward_from
from manyhands.strategies.linear_partition import linear_partition
from manyhands.strategies.model_blocks import Block, blocks

if TYPE_CHECKING:
    from manyhands.model.replica import Replica

_TRIALS = 5


def cut(
    whole: Replica,
    stages: int,
    where: str | None,
    batch: tuple[Tensor, Tensor],
    agree: Callable[[list[float]], list[float]],
) -> list[list[Block]]:
    """Return the blocks of each stage, the same on every process.

    Args:
        whole: The whole model.
        stages: How many parts there are to be.
        where: "time", "parameters", the names of the blocks at which a new stage begins, or None.
        batch: A micro-batch, to measure with.
        agree: Rank 0's list of numbers, on every process.
    """
    joined = _joined(whole, blocks(whole.module), batch[0])
    names = [block.name for block in joined]
    if stages > len(joined):
        raise ConfigError(
            f"stages is {stages}, but the model can be cut into {len(joined)} parts with "
            f"parameters ({', '.join(names)}); use {len(joined)} stages at most"
        )
    where = where or _features(joined, stages) or "time"
    if where == "parameters":
        ends = linear_partition(
            [sum(p.numel() for p in block.parameters()) for block in joined], stages
        )
    elif where == "time":
        ends = linear_partition(agree(measure(whole, joined, batch)), stages)
    else:
        starts = [0, *(_place(name, names) for name in where.split(",")), len(joined)]
        ends = list(pairwise(starts))
    if len(ends) != stages or any(first >= last for first, last in ends):
        raise ConfigError(
            f"cut is {where!r} for {stages} stages; expected {stages - 1} names of layers after "
            f"the first, in the model's order: {', '.join(names[1:])}"
        )
    return [joined[first:last] for first, last in ends]


def _joined(whole: Replica, listed: Sequence[Block], x: Tensor) -> list[Block]:
    """Join blocks between which the model cannot be cut.

    What crosses a cut is one tensor of real numbers whose first dimension counts the examples.
    """
    joined: list[Block] = []
    examples, crosses = len(x), True
    with whole.undisturbed(), torch.no_grad():
        for block in listed:
            x = block(x)
            if crosses:
                joined.append(block)
            else:
                joined[-1].modules.extend(block.modules)
            real = isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float64)
            crosses = real and x.dim() > 0 and len(x) == examples
    return joined


def _place(name: str, names: list[str]) -> int:
    if name not in names:
        raise ConfigError(
            f"cut names {name!r}; expected one of {', '.join(names[1:])}.{nearest(name, names)}"
        )
    return names.index(name)


def _features(listed: Sequence[Block], stages: int) -> str | None:
    """Return where the fully connected part begins, if two stages are to share such a model."""
    kinds = [{type(m) for _, module in block.modules for m in module.modules()} for block in listed]
    convolves = [bool(kind & {nn.Conv1d, nn.Conv2d, nn.Conv3d}) for kind in kinds]
    first = len(convolves) - convolves[::-1].index(True) if any(convolves) else 0
    return listed[first].name if stages == 2 and 0 < first < len(listed) else None


def measure(whole: Replica, listed: Sequence[Block], batch: tuple[Tensor, Tensor]) -> list[float]:
    """Return the seconds that each block takes, forward and backward; the best of a few trials."""
    best = [float("inf")] * len(listed)
    with whole.undisturbed():
        for _ in range(_TRIALS):
            x = whole.prepare(batch[0]) if whole.prepare else batch[0]
            for i, block in enumerate(listed):
                x = x.detach().requires_grad_(i > 0 and x.is_floating_point())
                begin = time.perf_counter()
                y = block(x)
                backward_from(y, torch.ones_like(y))
                best[i] = min(best[i], time.perf_counter() - begin)
                x = y
    return best
