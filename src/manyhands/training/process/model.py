"""Builds the model from one seed, its kernels and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from manyhands.config.optimizers import SGD, Adam, AdamW, expect_no_closure
from manyhands.errors import ConfigError, nearest
from manyhands.model.kernels import tuning
from manyhands.model.replica import Replica
from manyhands.model.zoo import MODELS, OWN_LOSS
from manyhands.training.process import objective
from manyhands.training.user_model import materialise_lazy

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig
    from manyhands.data import Stored
    from manyhands.data.batch_tree import Tree
    from manyhands.training.job import Job


def build_replica(job: Job, data: Stored, device: torch.device) -> Replica:
    """Return the job's model on its device, the same on every worker."""
    config = job.config
    torch.manual_seed(config.seed)
    module, own_loss = _make_module(job.model, data)
    loss = objective.make_loss(job, own_loss, data)
    # Drawn on the CPU, so that the first weights are the same on every device.
    materialise_lazy(module, loss, data)
    if config.init:
        _load_weights(module, Path(config.init))
    module.to(device, getattr(torch, config.dtype)).train()
    replica = Replica(module, loss, classifies=False)
    replica.pieces, replica.autocast = config.accumulate, config.autocast
    return replica


def _make_module(model: Any, data: Stored) -> tuple[nn.Module, str | None]:
    """Return the module for a name, a factory or a module, and its own loss if any."""
    if isinstance(model, str):
        if model not in MODELS:
            raise ConfigError(
                f"model is {model!r}; expected {', '.join(MODELS)} or package.module:factory."
                f"{nearest(model, MODELS)}"
            )
        return MODELS[model](tuple(data.shape), data.outputs), _bundled_loss(model, data)
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model gave a {type(module).__name__}; expected a torch.nn.Module")
    return module, None


def _bundled_loss(model: str, data: Stored) -> str | None:
    """Return the loss of a bundled model, which is made for classes."""
    return OWN_LOSS[model] if data.classes else None


def _load_weights(module: nn.Module, path: Path) -> None:
    """Load the weights of a file into `module`."""
    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigError(f"init is {str(path)!r}, which does not fit: {error}") from None


def choose_kernels(
    config: RunConfig,
    replica: Replica,
    passed: tuple[Tree, Tree],
    group: Communicator,
    step: Callable[[], object],
) -> tuning.Kernels:
    """Apply the requested kernels, or the fastest for a batch of this size."""
    if config.kernels != "auto":
        if config.kernels.startswith("compile"):
            parts: list[Any] = [part for part in (replica.masks, replica.norms) if part]
            for part in parts:
                part.outside_compilation()
        return tuning.apply_named(replica, config.kernels)
    if replica.params.is_cuda:  # how long a step takes kernel by kernel tells nothing of its graph
        return tuning.apply_named(replica, "default" if config.privacy else "graphs")
    return tuning.choose(
        replica,
        passed,
        group.maximum,
        lambda mine: group.gather(mine)[0],
        step=step,
        kind="private" if config.privacy else "bfloat16" if config.autocast else "plain",
        takes_part=group.rank < config.workers,
    )


def decay_filter(patterns: str | None, replica: Replica) -> Callable[[str], bool]:
    """Return a function that tells by name whether a parameter has weight decay."""
    excluded = patterns.split(",") if patterns else []
    names = [name for name, _ in replica.named]
    for pattern in excluded:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"no_decay has {pattern!r}, which is no parameter's name; expected some of "
                f"{', '.join(names)}"
            )
    return lambda name: not any(fnmatchcase(name, pattern) for pattern in excluded)


def build_optimizer(
    config: RunConfig,
    replica: Replica,
    batch: tuple[Tree, Tree],
    decays: Callable[[str], bool] = lambda name: True,
) -> torch.optim.Optimizer:
    """Build the optimizer over the flat vector, or over the named parameters if it is not ours."""
    chosen = config.optimizer
    if not isinstance(chosen, SGD | Adam | AdamW):
        built = chosen([p for _, p in replica.named] or [nn.Parameter(replica.params[:0])])
        if not isinstance(built, torch.optim.Optimizer):
            kind = type(built).__name__
            raise ConfigError(f"optimizer gave a {kind}; expected a torch.optim.Optimizer")
        expect_no_closure(built)
        return built
    if not chosen.weight_decay:
        return chosen.build(replica.slices(0, len(replica.params)), cuda=replica.params.is_cuda)
    used, unused = replica.segments(*batch, decays)
    untouched = [{"params": unused, "weight_decay": 0.0}] if unused else []
    return chosen.build([{"params": used}, *untouched], cuda=replica.params.is_cuda)
