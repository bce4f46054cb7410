"""Checkpoints of a loop of the user's own: what each worker holds, and where the loop was.

A folder of checkpoints as a run of `fit` writes them (`checkpoint.py`): one part per worker, whole
under its final name or not there at all, the newest that is undamaged is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from manyhands.checkpoint import FOLDER, MISUNDERSTOOD, Checkpoint, Part, Writer, newest
from manyhands.errors import ConfigError, DataError
from manyhands.lifecycle import optimizer_states, restore_optimizer
from manyhands.meeting import agreed

if TYPE_CHECKING:
    from manyhands.userloop import UserLoop


def save(loop: UserLoop, folder: Path, position: Mapping[str, Any], keep: int) -> None:
    """Write a checkpoint, and return when it is whole on the disk. Collective.

    Raises:
        ConfigError: On every worker, if `position` is nothing that JSON can hold.
        DataError: On every worker, if one of them cannot write; the checkpoint before stays.
    """
    group = loop.comm
    part = agreed(group, lambda: _part(loop, position))
    writer = Writer(folder, group.rank, group.size, keep)
    group.barrier()  # worker 0 has cleared away what a killed run left half written

    def write() -> None:
        try:
            writer.write(loop.step, part, _about(loop))
            writer.wait()
        except OSError as error:
            raise DataError(
                f"worker {group.rank} cannot write its part of a checkpoint in {folder}: {error}; "
                "every worker must see the same folder"
            ) from None

    agreed(group, write)


def load(loop: UserLoop, folder: Path, say: Any) -> dict[str, Any]:
    """Put every worker where the newest whole checkpoint has it; returns the position. Collective.

    Returns:
        What `save` was given; nothing if there is no checkpoint yet.

    Raises:
        ConfigError: On every worker, if the checkpoint is of something else.
    """
    group = loop.comm
    found = agreed(group, lambda: _found(loop, folder, say))
    steps = group.gather(found.step if found else None)
    if len(set(steps)) > 1:
        raise ConfigError(
            f"the newest checkpoint in {folder} is that of step {steps} on the workers; every "
            "worker must see the same folder"
        )
    if found is None:
        return {}
    return agreed(group, lambda: _restored(loop, found))


def _about(loop: UserLoop) -> dict[str, Any]:
    """Return what a checkpoint must be of to fit this loop."""
    named = _tensors(loop)
    return {
        "model": {name: [list(t.shape), str(t.dtype)] for name, t in named.items()},
        "optimizer": type(loop.optimizer).__name__,
        "strategy": repr(loop.config.strategy),
    }


def _tensors(loop: UserLoop) -> dict[str, torch.Tensor]:
    """Return the model's parameters and buffers, live, by name."""
    module = loop.replica.module
    return {name: t.detach() for name, t in (*module.named_parameters(), *module.named_buffers())}


def _part(loop: UserLoop, position: Mapping[str, Any]) -> Part:
    """Return a copy of what this worker holds."""
    try:
        json.dumps(position)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"what save was given beside its folder cannot be kept as JSON: {error}; expected "
            "numbers, texts, and lists and dictionaries of them"
        ) from None
    loop.check_home()
    holder = cast("Any", loop)
    tensors = {f"model.{name}": tensor.clone() for name, tensor in _tensors(loop).items()}
    tensors["random"] = torch.get_rng_state()
    for index, remembered in enumerate(optimizer_states(holder)):
        tensors |= {f"optimizer.{index}.{n}": t.detach().clone() for n, t in remembered.items()}
    held, counts = loop.config.strategy.state(holder)
    tensors |= {f"strategy.{name}": tensor.detach().clone() for name, tensor in held.items()}
    numbers = {
        "position": dict(position),
        "step": loop.step,
        "seeded": loop.seeded,
        "groups": [_plain(group) for group in loop.optimizer.param_groups],
        "strategy": counts,
    }
    return Part(tensors, numbers)


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group of parameters, its learning rate among them."""
    kinds = (bool, int, float, str, tuple, type(None))
    found = {name: value for name, value in group.items() if isinstance(value, kinds)}
    rates = {name: float(v) for name, v in group.items() if isinstance(v, torch.Tensor)}
    return {**found, **rates}


def _found(loop: UserLoop, folder: Path, say: Any) -> Checkpoint | None:
    """Return the newest whole checkpoint, refused if it is of something else."""
    found = newest(folder, say)
    if found is None:
        if any((folder / FOLDER).glob("step-*")):
            raise DataError(f"no checkpoint in {folder} is whole; start anew in another folder")
        return None
    for name, mine in _about(loop).items():
        if found.about.get(name) != mine:
            raise ConfigError(
                f"the checkpoint {found.folder} is of another {name} than this loop has; expected "
                "the one that it was saved with"
            )
    size = found.about["processes"]
    if size != loop.comm.size and not loop.config.strategy.supports.identical:
        raise ConfigError(
            f"the checkpoint {found.folder} is of {size} workers, and here are {loop.comm.size}; "
            f"with {loop.config.strategy.name} every worker has a model of its own, so their "
            "number stays"
        )
    return found


def _restored(loop: UserLoop, found: Checkpoint) -> dict[str, Any]:
    """Take up this worker's part; a worker that was not there has worker 0's."""
    known = loop.comm.rank < found.about["processes"]
    part = found.part(loop.comm.rank if known else 0)
    try:
        tensors, numbers = part.tensors, part.numbers
        for name, tensor in _tensors(loop).items():
            tensor.copy_(tensors[f"model.{name}"])
        restore_optimizer(cast("Any", loop), tensors)
        for group, kept in zip(loop.optimizer.param_groups, numbers["groups"], strict=True):
            for name, value in kept.items():
                _set(group, name, value)
        held = {n[len("strategy.") :]: t for n, t in tensors.items() if n.startswith("strategy.")}
        loop.config.strategy.restore(cast("Any", loop), held, numbers["strategy"])
        loop.step = int(numbers["step"])
        if known:
            loop.seeded = bool(numbers["seeded"])
            torch.set_rng_state(tensors["random"])
        return dict(numbers["position"])
    except MISUNDERSTOOD as error:
        raise DataError(f"{found.folder} cannot be understood: {error}") from None


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    """Give a group of parameters an option back, as what it is here."""
    if isinstance(group.get(name), torch.Tensor):
        group[name].fill_(value)
    else:
        group[name] = tuple(value) if isinstance(value, list) else value
