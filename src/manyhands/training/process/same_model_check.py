"""Refuses a group whose workers built different models, before the first exchange."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from manyhands.comm import Communicator


def check_same_model(module: nn.Module, group: Communicator) -> None:
    """Refuse models whose parameters or buffers differ in name, shape or type. Collective.

    Raises:
        ConfigError: On every process; it names the first worker that differs, and what of it.
    """
    if group.size == 1:
        return
    mine = _describe_tensors(module)
    digest = hashlib.sha256(json.dumps(mine).encode()).hexdigest()
    if len(set(group.gather(digest))) == 1:
        return
    first, *others = group.gather(mine)
    rank, other = next((r, o) for r, o in enumerate(others, 1) if o != first)
    raise ConfigError(
        f"the models of the workers differ: {_first_difference(first, other, rank)}; expected "
        "every worker to build the same model, whatever its rank, host or environment"
    )


def _describe_tensors(module: nn.Module) -> list[list[Any]]:
    """Return name, shape and type of every parameter and buffer."""
    both = (*module.named_parameters(), *module.named_buffers())
    return [
        [name, list(value.shape), str(value.dtype).removeprefix("torch.")] for name, value in both
    ]


def _first_difference(first: list[list[Any]], other: list[list[Any]], rank: int) -> str:
    """Return the first difference between worker 0's model and that of worker `rank`.

    >>> _first_difference([["w", [8, 6], "float32"]], [["w", [9, 6], "float32"]], 1)
    'w has the shape (8, 6) on rank 0, and (9, 6) on rank 1'
    """
    ours, theirs = ({name: (shape, kind) for name, shape, kind in each} for each in (first, other))
    for name, (shape, kind) in ours.items():
        if name not in theirs:
            return f"rank 0 has {name} of shape {_shape(shape)}, and rank {rank} does not"
        if theirs[name][0] != shape:
            return (
                f"{name} has the shape {_shape(shape)} on rank 0, and {_shape(theirs[name][0])} on "
                f"rank {rank}"
            )
        if theirs[name][1] != kind:
            return f"{name} is {kind} on rank 0, and {theirs[name][1]} on rank {rank}"
    for name, (shape, _) in theirs.items():
        if name not in ours:
            return f"rank {rank} has {name} of shape {_shape(shape)}, and rank 0 does not"
    return f"rank {rank} has its parameters in another order than rank 0"


def _shape(shape: list[int]) -> str:
    return str(tuple(shape))
