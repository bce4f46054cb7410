"""Checkpoints of a user's own loop: each worker's state, and the loop's position.

A folder of checkpoints as a run of `fit` writes them (`worker/checkpoint/folder_layout.py`): one
part per worker, whole under its final name or not there at all, the newest that is undamaged is
used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from manyhands.comm.rendezvous import agree, ask_leader
from manyhands.config.option_declaration import COUNT
from manyhands.config.options import options
from manyhands.errors import ConfigError, DataError
from manyhands.training import folder_lock, output_folder
from manyhands.training.folder_lock import Member
from manyhands.training.output_folder import Claim
from manyhands.worker.checkpoint.folder_layout import (
    MISUNDERSTOOD,
    Checkpoint,
    CheckpointPart,
    Writer,
    damage,
    forget_after,
    newest,
    steps_in,
)
from manyhands.worker.checkpoint.saved_contents import capture_common, restore_common

if TYPE_CHECKING:
    from manyhands.training.userloop.loop import UserLoop

# What JSON would give back as something else is kept with its kind, under this key.
KIND = "="
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (tuple, dict, Counter)}


def save(loop: UserLoop, folder: Path, position: Mapping[str, Any], keep: int) -> None:
    """Write a checkpoint; return when it is complete on the disk. Collective.

    Raises:
        ConfigError: On every worker, if `position` cannot be kept, if another process uses the
            folder, or if it has checkpoints past this one that the loop neither wrote nor loaded.
        DataError: On every worker, if one of them cannot write; the checkpoint before stays.
    """
    group = loop.comm
    part = agree(group, lambda: _worker_part(loop, folder, position, keep))
    _lock_folder(loop, folder)
    writer = Writer(folder, group.rank, group.size, keep)
    group.barrier()  # worker 0 has cleared away what a killed run left half written

    def write() -> None:
        try:
            writer.write(loop.step, part, _expected_about(loop))
            writer.wait()
        except OSError as error:
            raise DataError(
                f"worker {group.rank} cannot write its part of a checkpoint in {folder}: {error}; "
                "every worker must see the same folder"
            ) from None

        if group.rank == 0:  # the loop has gone back, and what it had written past this is no more
            forget_after(folder, loop.step)

    agree(group, write)
    loop.folders.add(folder.resolve())


def load(loop: UserLoop, folder: Path, say: Any) -> dict[str, Any]:
    """Restore the newest complete checkpoint; return the loop's position. Collective.

    Returns:
        What `save` was given; nothing if there is no checkpoint yet.

    Raises:
        ConfigError: On every worker, if the checkpoint is of something else, or the model is not
            the worker's own.
    """
    group = loop.comm
    if group.rank == 0 and folder.resolve() not in loop.claims:
        try:
            folder_lock.ended_holder(folder, str(folder))
        except ConfigError as error:
            say(f"{error}; loading is possible meanwhile, saving there is not")
    checkpoint = agree(group, lambda: _find_checkpoint(loop, folder, say))
    steps = group.gather(checkpoint.step if checkpoint else None)
    if len(set(steps)) > 1:
        raise ConfigError(
            f"the newest checkpoint in {folder} is that of step {steps} on the workers; every "
            "worker must see the same folder"
        )
    position = agree(group, lambda: _restore_part(loop, checkpoint)) if checkpoint else {}
    loop.folders.add(folder.resolve())
    return position


def _lock_folder(loop: UserLoop, folder: Path) -> None:
    """Lock the folder for this loop until it ends. Collective."""
    group, place = loop.comm, folder.resolve()
    if place not in loop.claims:
        members = [Member(*each) for each in group.gather(Member.here())]
        locked = ask_leader(
            group, lambda: output_folder.lock_any(place, option="folder", members=members).to_json()
        )
        loop.claims[place] = Claim.from_json(locked)


def _expected_about(loop: UserLoop) -> dict[str, Any]:
    """Return what a checkpoint must state to fit this loop."""
    named = _tensors(loop)
    return {
        "model": {name: [list(t.shape), str(t.dtype)] for name, t in named.items()},
        "optimizer": type(loop.optimizer).__name__,
        "strategy": describe_strategy(loop.config.strategy),
    }


def describe_strategy(strategy: Any) -> str:
    """Return the strategy's `repr`, without options that checkpoints of older versions lack.

    Options that were added later are named if changed, as in the ids of sweeps.
    """
    table = options()
    values = {f.name: getattr(strategy, f.name) for f in fields(strategy)}
    name = strategy.name
    old = {n: v for n, v in values.items() if n not in table or table[n].is_hashed(v, name)}
    return f"{type(strategy).__qualname__}({', '.join(f'{n}={v!r}' for n, v in old.items())})"


def _tensors(loop: UserLoop) -> dict[str, torch.Tensor]:
    """Return the model's parameters and buffers, live, by name."""
    module = loop.replica.module
    return {name: t.detach() for name, t in (*module.named_parameters(), *module.named_buffers())}


def _check_folder(loop: UserLoop, folder: Path, keep: int) -> None:
    """Refuse a folder with checkpoints of another loop, which `load` would restore."""
    COUNT.check("keep", keep)
    last = max(steps_in(folder), default=0)
    if last > loop.step and folder.resolve() not in loop.folders:
        raise ConfigError(
            f"{folder} has a checkpoint of step {last}, past this loop's step {loop.step}, and is "
            f"not its own; expected hands.load({str(folder)!r}) first, to go on from there, or "
            "another folder"
        )


def _worker_part(
    loop: UserLoop, folder: Path, position: Mapping[str, Any], keep: int
) -> CheckpointPart:
    """Return a copy of this worker's state."""
    loop.check_home()
    _check_folder(loop, folder, keep)
    kept = {name: pack(value, name) for name, value in position.items()}
    tensors, counts = capture_common(cast("Any", loop))
    tensors |= {f"model.{name}": tensor.clone() for name, tensor in _tensors(loop).items()}
    tensors["random"] = torch.get_rng_state()
    numbers = {
        "position": kept,
        "step": loop.step,
        "seeded": loop.seeded,
        "groups": [_group_options(group) for group in loop.optimizer.param_groups],
        "strategy": counts,
    }
    return CheckpointPart(tensors, numbers)


def pack(value: Any, name: str) -> Any:
    """Return `value` in a JSON form from which `unpack` restores it.

    Raises:
        ConfigError: Where it cannot, saying where in `name` that is, and what to write.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value)
    if kind in (list, tuple):
        items = [pack(one, f"{name}[{index}]") for index, one in enumerate(value)]
        return items if kind is list else {KIND: "tuple", "of": items}
    if kind is dict and KIND not in value and all(isinstance(key, str) for key in value):
        return {key: pack(one, f"{name}[{key!r}]") for key, one in value.items()}
    if kind in (dict, Counter):
        pairs = [[pack(k, f"a key of {name}"), pack(v, f"{name}[{k!r}]")] for k, v in value.items()]
        return {KIND: kind.__name__, "of": pairs}
    raise ConfigError(
        f"what save was given cannot be kept as JSON: {name} is a {kind.__name__}; expected "
        "numbers, texts, and lists, tuples and dictionaries of them: write int(x), float(x), "
        "x.tolist() or dict(x), and make it again from what load returns"
    )


def unpack(kept: Any) -> Any:
    """Return the value that `pack` was given."""
    if isinstance(kept, list):
        return [unpack(one) for one in kept]
    if not isinstance(kept, dict):
        return kept
    if KIND not in kept:
        return {key: unpack(one) for key, one in kept.items()}
    kind, items = KINDS[kept[KIND]], [unpack(one) for one in kept["of"]]
    return tuple(items) if kind is tuple else kind(dict(items))


def _group_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group, its learning rate included."""
    kinds = (bool, int, float, str, tuple, type(None))
    options = {name: value for name, value in group.items() if isinstance(value, kinds)}
    rates = {name: float(v) for name, v in group.items() if isinstance(v, torch.Tensor)}
    return {**options, **rates}


def _find_checkpoint(loop: UserLoop, folder: Path, say: Any) -> Checkpoint | None:
    """Return the newest complete checkpoint; refuse one that does not fit."""
    loop.check_home()
    checkpoint = newest(folder, say)
    if checkpoint is None:
        if damaged := damage(folder):
            raise DataError(
                f"every checkpoint in {folder} is damaged: {damaged}; restore one of them, or "
                "start anew in another folder"
            )
        return None
    for name, mine in _expected_about(loop).items():
        if checkpoint.about.get(name) != mine:
            raise ConfigError(
                f"the checkpoint {checkpoint.folder} is of another {name} than this loop has; "
                "expected the one that it was saved with"
            )
    size = checkpoint.about["processes"]
    if size != loop.comm.size and not loop.config.strategy.supports.identical:
        raise ConfigError(
            f"the checkpoint {checkpoint.folder} is of {size} workers, and here are "
            f"{loop.comm.size}; with {loop.config.strategy.name} every worker has a model of its "
            "own, so their number stays"
        )
    return checkpoint


def _restore_part(loop: UserLoop, checkpoint: Checkpoint) -> dict[str, Any]:
    """Restore this worker's state; a worker that is new takes worker 0's."""
    known = loop.comm.rank < checkpoint.about["processes"]
    part = checkpoint.part(loop.comm.rank if known else 0)
    try:
        tensors, numbers = part.tensors, part.numbers
        for name, tensor in _tensors(loop).items():
            tensor.copy_(tensors[f"model.{name}"])
        for group, kept in zip(loop.optimizer.param_groups, numbers["groups"], strict=True):
            for name, value in kept.items():
                _set_option(group, name, value)
        restore_common(cast("Any", loop), tensors, numbers["strategy"])
        loop.step = int(numbers["step"])
        if known:
            loop.seeded = bool(numbers["seeded"])
            torch.set_rng_state(tensors["random"])
        return {name: unpack(kept) for name, kept in numbers["position"].items()}
    except MISUNDERSTOOD as error:
        raise DataError(f"{checkpoint.folder} cannot be understood: {error}") from None


def _set_option(group: dict[str, Any], name: str, value: Any) -> None:
    """Restore an option of a parameter group, in its present type."""
    if isinstance(group.get(name), torch.Tensor):
        group[name].fill_(value)
    else:
        group[name] = tuple(value) if isinstance(value, list) else value
