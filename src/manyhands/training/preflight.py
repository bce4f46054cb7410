"""Refuses models, losses and options that do not fit the data, before anything starts.

The workers look again, at real batches. What only they can know is left to them.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from manyhands.config.optimizers import SGD, Adam, AdamW
from manyhands.config.run import LOSSES, SMALLEST_PICTURES
from manyhands.data import batch_tree, room
from manyhands.data.shards import row_groups
from manyhands.data.split import validation_size
from manyhands.data.stored import About, Stored
from manyhands.errors import ConfigError, LaunchError
from manyhands.launch.environment import in_group
from manyhands.launch.hosts import lab_hosts
from manyhands.model import initial_weights
from manyhands.privacy.terms import rate
from manyhands.training.job import TrainingRequest
from manyhands.training.process.data import make_plan, stream_plan

if TYPE_CHECKING:
    from torch import nn

    from manyhands.config.run import RunConfig


class Subject(TrainingRequest, Protocol):
    """The parts of a run that are checked."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build a new copy of the model."""


_CLASSIFYING = LOSSES[:2]


def check(run: Subject, stored: Path) -> None:
    """Refuse a run whose model, loss or options do not fit its stored data.

    Raises:
        ConfigError: With the option, its value, and what to do.
    """
    about = About.read(stored)
    _check_division(run.config, about, stored)
    if about.streamed:
        _check_streamed(run)
        return
    if isinstance(run.model, str):
        _check_images(run.model, _shape(stored, about.keys("train")[0][0])[1:])
    if "torch" not in sys.modules and not _needs_trial(run, about, stored):
        return  # the launcher of a usual run has no use for torch, and starts faster without it
    _check_module(run, stored)


def _check_streamed(run: Subject) -> None:
    """Refuse a user's model that the strategy cannot train; streamed data is not read."""
    if isinstance(run.model, str) or "torch" not in sys.modules:
        return
    module = _build_model(run, (), 0)
    if module is not None:
        run.config.strategy.check_module(module)


def _shape(stored: Path, key: str) -> tuple[int, ...]:
    return tuple(np.load(stored / f"{key}.npy", mmap_mode="r").shape)


def _check_division(config: RunConfig, about: About, stored: Path) -> None:
    """Refuse data that cannot be divided as requested."""
    if config.privacy:
        config.privacy.check_data(about.learned)
    if about.streamed:
        stream_plan(config, row_groups(Path(about.streamed)), rank=0)
        return
    examples = min(about.train, config.limit or about.train)
    labels = np.load(stored / "train_y.npy", mmap_mode="r")[:examples] if about.classes else None
    labels = labels if labels is None or labels.ndim == 1 else None
    if config.validation:
        examples -= validation_size(config.validation, examples)
        labels = None if labels is None else labels[:examples]
    config.strategy.check_data(about.features, about.targets)
    make_plan(config, examples=examples, rank=0, labels=labels)
    if config.privacy:
        rate(config, examples)


def _check_images(model: str, shape: tuple[int, ...]) -> None:
    """Refuse data that our convolutional models cannot take."""
    least = SMALLEST_PICTURES.get(model)
    if least is None or (len(shape) == 3 and shape[1] == shape[2] >= least):
        return
    raise ConfigError(
        f"model is {model!r}, which takes square pictures (channels, height, width) of {least} × "
        f"{least} or more, but an example has the shape {shape}; use mlp or logistic, which take "
        "any shape, or your own model"
    )


def _needs_trial(run: Subject, about: About, stored: Path) -> bool:
    """Return whether an option is set that only a trial can check."""
    config = run.config
    if (
        config.init
        or config.sync_batchnorm
        or run.loss is not None
        or not isinstance(run.model, str)
    ):
        return True
    if about.classes is None:
        return any(v is not None for v in (config.loss, config.metric, config.target_accuracy))
    single = about.targets is None and len(_shape(stored, "train_y")) == 1
    fits = single and (config.loss is None or config.loss in _CLASSIFYING)
    return not fits or config.metric not in (None, "accuracy")


def _check_module(run: Subject, stored: Path) -> None:
    """Refuse a model or a loss that cannot take the data's shape, and weights that do not fit."""
    import torch

    from manyhands.model import batchnorm
    from manyhands.training import trial
    from manyhands.training.process import objective

    config, data = run.config, Stored.open(stored, dtype=run.config.dtype)
    module = _build_model(run, data.shape, data.outputs)
    if module is None:
        return
    if not isinstance(run.model, str):
        config.strategy.check_module(module)
    loss = objective.planned_loss(run, data)
    with torch.random.fork_rng([]):
        trial.materialise_lazy(module, loss, data)
    trial.check_optimizer(config.optimizer, module)
    if config.sync_batchnorm:
        batchnorm.check(module)
    _check_memory(config, module)
    if config.init:
        shapes = {name: _shape_of(value) for name, value in module.state_dict().items()}
        if None not in shapes.values():  # lazy parameters have none yet
            initial_weights.check_shapes(Path(config.init), shapes)
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    if names:
        owners = [name.rpartition(".")[0] or name for name in names]
        config.strategy.check_model(layers=list(dict.fromkeys(owners)))
    if config.device != "cpu" or batch_tree.takes_model(loss):
        return
    split = 1 if config.strategy.supports.whole_batches else config.workers
    objective.try_shapes(module, data, math.ceil(config.batch_size / split), run)


def _check_memory(config: RunConfig, module: nn.Module) -> None:
    """Refuse a model too large for this machine's memory with all workers; warn if tight.

    Counts what is certain: parameters and gradients of each worker, which holds a whole model or
    divides one among its processes, and the optimizer's state. Data is read from mapped files.
    """
    if config.device != "cpu" or config.places or lab_hosts() or in_group():
        return
    if any(_shape_of(parameter) is None for parameter in module.parameters()):
        return
    need = _memory_needed(config, module)
    free, whole = room.free_memory(), room.whole_memory()
    lacks = whole is not None and need > whole
    if not lacks and (free is None or need <= free):
        return
    have = (
        f"this machine has {room.format_bytes(whole or 0)}"
        if lacks
        else f"{room.format_bytes(free or 0)} is free"
    )
    text = (
        f"workers is {config.workers}, and their parameters, gradients and optimizer state take at "
        f"least {room.format_bytes(need)} of memory, but {have}; use fewer workers, a smaller "
        "model or an optimizer with less state, or divide the model among hosts (strategy pipeline "
        "or tensor)"
    )
    if lacks:
        raise LaunchError(text)
    print(f"manyhands: warning: {text}", file=sys.stderr)


def _memory_needed(config: RunConfig, module: nn.Module) -> int:
    """Return the least bytes that the workers of a run need for their models."""
    sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in module.parameters()]
    every, trained = sum(b for b, _ in sizes), sum(b for b, trains in sizes if trains)
    chosen = config.optimizer
    moments = 2 if isinstance(chosen, Adam | AdamW) else 0
    if isinstance(chosen, SGD) and chosen.momentum:
        moments = 1
    # A strategy with processes beside its workers may keep the state there.
    stepping = config.workers if config.processes == config.workers else 1
    return config.workers * (every + trained) + stepping * moments * trained


def _build_model(run: Subject, shape: tuple[int, ...], outputs: int) -> nn.Module | None:
    """Return the model, built here for checks; None where the workers will refuse it."""
    import torch

    from manyhands.training import trial

    trial.check_portable(run.model)
    try:
        with torch.random.fork_rng([]):
            module = run.build(shape, outputs)
    except Exception:  # told by the workers, with its traceback
        return None
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"model built a {type(module).__name__}; expected a torch.nn.Module")
    return module


def _shape_of(value: Any) -> tuple[int, ...] | None:
    try:
        return tuple(value.shape)
    except RuntimeError:
        return None
