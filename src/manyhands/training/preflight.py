"""Refuses models, losses and options that do not fit the data, before anything starts.

The workers look again, at real batches. What only they can know is left to them.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from manyhands.config.run import LOSSES, SMALLEST_PICTURES
from manyhands.data import batch_tree
from manyhands.data.example_batches import IGNORED
from manyhands.data.parquet_shards import row_groups
from manyhands.data.stored import About
from manyhands.data.validation_part import validation_size
from manyhands.errors import ConfigError
from manyhands.launch.resources import check_disk_space
from manyhands.model import initial_weights
from manyhands.privacy import accountant
from manyhands.privacy.accountant import Event
from manyhands.privacy.rounding_lattice import Lattice, count_senders
from manyhands.privacy.steps_rate_noise import planned_steps, rate, solve
from manyhands.training import lazy_checks, memory_check, user_objects
from manyhands.training.job import TrainingRequest
from manyhands.training.process.data import make_plan, open_data, plan_for_worker, stream_plan
from manyhands.worker.checkpoint.folder_layout import FOLDER

if TYPE_CHECKING:
    from torch import nn

    from manyhands.config.run import RunConfig


class Subject(TrainingRequest, Protocol):
    """The parts of a run that are checked."""

    def read_later(self, stored: Path) -> dict[str, Any]:
        """Return the user's data sets that workers read when an example is due, by part."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build a new copy of the model."""


_CLASSIFYING = LOSSES[:2]
_MODEST = 4.0  # a σ that suits every model of fewer than 2³⁴ parameters, which are 64 GiB


def check(run: Subject, stored: Path) -> None:
    """Refuse a run whose model, loss or options do not fit its stored data.

    Raises:
        ConfigError: With the option, its value, and what to do.
    """
    about = About.read(stored)
    _check_validation(run.config, about)
    if about.lazy:
        _check_lazy(run, about, stored)
        return
    _check_division(run.config, about, stored)
    if about.streamed:
        _check_streamed(run)
        return
    if isinstance(run.model, str):
        _check_images(run.model, _shape(stored, about.keys("train")[0][0])[1:])
    if "torch" not in sys.modules and not _needs_trial(run, about, stored):
        memory_check.check(run.config, None, stored, _examples(run.config, about))
        return  # the launcher of a usual run has no use for torch, and starts faster without it
    _check_module(run, stored)


def _check_lazy(run: Subject, about: About, stored: Path) -> None:
    """Refuse options and a model that do not fit data of which one example is known."""
    config, examples = run.config, run.read_later(stored)
    lazy_checks.check(config, examples)
    data = open_data(config, stored, examples)
    config.strategy.check_data(about.features, about.targets)
    plan_for_worker(config, data, 0)
    if isinstance(run.model, str):
        if about.classes is None and data.train.labelled:
            raise ConfigError(
                f"model is {run.model!r}, and the number of classes is not known before the data "
                "is read; give mh.Data(…, classes=10), or your own model"
            )
        _check_images(run.model, data.shape)
    _check_module(run, stored)


def _check_streamed(run: Subject) -> None:
    """Refuse a user's model that the strategy cannot train; streamed data is not read."""
    if isinstance(run.model, str) or "torch" not in sys.modules:
        return
    module = _build_model(run, (), 0)
    if module is not None:
        run.config.strategy.check_module(module)


def _check_validation(config: RunConfig, about: About) -> None:
    """Refuse two validation sets, and a patience or a target that has none to go by."""
    if about.validation and config.validation is not None:
        raise ConfigError(
            f"validation is {config.validation}, but the data {about.name!r} has a validation set "
            f"of {about.validation} examples; leave one of them out"
        )
    if about.validation and config.privacy:
        raise ConfigError(
            f"the data {about.name!r} has a validation set in a private run: validation figures "
            "would reveal its records; use public data as the test set"
        )
    if about.validation or config.validation is not None:
        return
    if config.patience is not None:
        raise ConfigError(
            f"patience is {config.patience}, but there is no validation set; add validation, e.g. "
            "0.1, or give Data(train, test, validation=…)"
        )
    aims = config.target is not None or config.target_accuracy is not None
    every = config.evaluations
    if aims and every.epochs is not None and every.epochs > 1:
        raise ConfigError(
            f"evaluate_every is {config.evaluate_every}, but the target needs the test set after "
            "every epoch; leave one of them out, or add validation, e.g. 0.1"
        )


def _shape(stored: Path, key: str) -> tuple[int, ...]:
    return tuple(np.load(stored / f"{key}.npy", mmap_mode="r").shape)


def _check_division(config: RunConfig, about: About, stored: Path) -> None:
    """Refuse data that cannot be divided as requested."""
    if config.privacy:
        config.privacy.check_data(about.learned)
    if about.streamed:
        stream_plan(config, row_groups(Path(about.streamed)), rank=0)
        return
    examples = _examples(config, about)
    labels = np.load(stored / "train_y.npy", mmap_mode="r")[:examples] if about.classes else None
    if config.privacy and labels is not None and (labels == IGNORED).any():
        raise ConfigError(
            f"the training set has labels of {IGNORED}, which a loss ignores, but in a private run "
            "every example needs a gradient of its own; leave such examples out"
        )
    flat = labels is not None and labels.ndim == 1 and not (labels == IGNORED).any()
    labels = labels if flat else None
    if config.validation:
        examples -= validation_size(config.validation, examples)
        labels = None if labels is None else labels[:examples]
    config.strategy.check_data(about.features, about.targets)
    make_plan(config, examples=examples, rank=0, labels=labels)
    if config.privacy:
        rate(config, examples)
        config.privacy.resolve_delta(examples)


def _examples(config: RunConfig, about: About) -> int:
    return min(about.train, config.limit or about.train)


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
    from manyhands.training import user_model
    from manyhands.training.process import objective

    config = run.config
    data = open_data(config, stored, run.read_later(stored))
    module = _build_model(run, data.shape, data.outputs)
    if module is None:
        return
    if not isinstance(run.model, str):
        config.strategy.check_module(module)
    loss = objective.planned_loss(run, data)
    if run.loss is None and batch_tree.takes_model(loss):
        user_objects.check_model_loss(config, objective.loss_name(loss))
    with torch.random.fork_rng([]):
        user_model.materialise_lazy(module, loss, data)
    user_model.check_optimizer(config.optimizer, module)
    if config.sync_batchnorm:
        batchnorm.check(module)
    examples = _examples(config, About.read(stored))
    memory_check.check(config, module, stored, examples)
    _check_disk(config, memory_check.count(config, module, stored, examples))
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


def check_noise(run: Subject, stored: Path, before: tuple[Event, ...]) -> None:
    """Refuse noise so large that the workers could not add their messages up exactly.

    Args:
        run: What is checked; not private, it passes.
        stored: The folder of its data.
        before: What was spent on the initial weights.

    Raises:
        ConfigError: With σ, the number of parameters, and what to do.
    """
    config, privacy = run.config, run.config.privacy
    if privacy is None or count_senders(config) == 1:
        return
    examples = _examples(config, About.read(stored))
    if privacy.epsilon is None:
        modest = privacy.noise_multiplier is not None and privacy.noise_multiplier <= _MODEST
    else:  # to solve for σ takes long
        planned = Event(planned_steps(config, examples), rate(config, examples), _MODEST)
        delta = privacy.resolve_delta(examples)
        modest = accountant.compose((*before, planned), delta, "rdp") <= privacy.epsilon
    if modest:
        return
    import torch

    from manyhands.training import user_model
    from manyhands.training.process import objective

    data = open_data(config, stored, {})
    module = _build_model(run, data.shape, data.outputs)
    if module is None:
        return
    with torch.random.fork_rng([]):
        user_model.materialise_lazy(module, objective.planned_loss(run, data), data)
    if trained := [p for p in module.parameters() if p.requires_grad]:
        Lattice.of_run(
            config,
            solve(config, examples, before),
            dim=sum(p.numel() for p in trained),
            digits=24 if trained[0].dtype == torch.float32 else 53,
        )


def _check_disk(config: RunConfig, needs: memory_check.Needs) -> None:
    """Refuse a run whose output folder has no space for its checkpoints and its model.

    Each worker's part of a checkpoint has the parameters; workers may divide the optimizer's state.
    """
    output, instead = Path(config.output or "runs"), "another output"
    need, what = needs.parameters // config.workers, "the model"
    if config.checkpoint_every:
        at_once = config.keep + 1  # a new one is complete before the oldest is removed
        need += at_once * (needs.copies + needs.optimizer)
        need -= sum(p.stat().st_size for p in (output / FOLDER).rglob("*") if p.is_file())
        what = f"a run with keep {config.keep} (up to {at_once} checkpoints, and the model)"
        instead += " or a smaller keep"
    check_disk_space(output, need, what, instead)


def _build_model(run: Subject, shape: tuple[int, ...], outputs: int) -> nn.Module | None:
    """Return the model, built here for checks; None where the workers will refuse it."""
    import torch

    from manyhands.training import user_model

    user_model.check_portable(run.model)
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
