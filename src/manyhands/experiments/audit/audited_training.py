"""What an audit trains: the run that the user's options describe, or a small one of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from manyhands import value_checks
from manyhands.config.optimizers import SGD
from manyhands.config.options import configure, options
from manyhands.config.run import RunConfig
from manyhands.data import Data, Stored, store
from manyhands.errors import ConfigError
from manyhands.experiments.audit import models
from manyhands.experiments.audit.models import AuditModel, Clipping
from manyhands.training import user_objects

CLIPPING: Mapping[Clipping, str] = {
    "layers": "clipped layer by layer (privacy/layerwise.py)",
    "vmap": "clipped by vmap (privacy/clipping.py)",
    "stages": "clipped over the stages (privacy/split_model_clipping.py)",
}
RATE, STEPS, RECORDS = 0.1, 30, 2000
NOISE = 2.0  # σ, where neither it nor epsilon is given
# Groups of options that make a recipe, but for what any audited run has.
_GROUPS = ("Task", "Training", "Stopping", "Division", "Optimizer")
_OF_ANY = ("strategy", "workers", "seed", "dtype", "private")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train.

    Attributes:
        name: What it is called in a report.
        options: The arguments of `fit`.
    """

    name: str
    options: dict[str, Any]


def is_given(given: Mapping[str, Any]) -> bool:
    """Say whether options describe a run of the user's: any that is not of strategy and noise."""
    table = options()
    named = (table[name] for name, value in given.items() if value is not None and name in table)
    return any(one.group in _GROUPS and one.name not in _OF_ANY for one in named)


def refuse_others(given: Mapping[str, Any]) -> None:
    """Refuse options of a run that an audit does not take."""
    table = options()
    for name in given:
        if name in table and not table[name].is_taken_by("audit"):
            raise ConfigError(f"{name} is given, which an audit does not take: leave it out")
    if given.get("private") is False:
        raise ConfigError("private is False, but an audit is of a private run: leave it out")


def list_clippings(given: Mapping[str, Any]) -> tuple[Clipping, ...]:
    """Return the ways in which a run with these options may clip, by its model."""
    named = {"strategy": given["strategy"]} if given.get("strategy") else {}
    staged = configure(named).strategy.supports.beside == "stage"
    return ("stages",) if staged else ("layers", "vmap")


def of_user(given: Mapping[str, Any], record: Callable[[], None], folder: Path) -> Recipe:
    """Return the user's run; every process runs `record` before it builds the model.

    Args:
        given: Its options.
        record: Starts the recording.
        folder: Where the data may be stored, to find out what the model is built for.
    """
    from manyhands.model.zoo import MODELS, OWN_LOSS

    chosen = {**given, "private": True, "name": "audit"}
    config = configure(chosen)
    model = user_objects.model(config.model, config)
    if isinstance(model, str):
        data = Stored.open(store(config.data, folder))
        if data.classes and config.loss is None:
            chosen["loss"] = OWN_LOSS[model]
        model = partial(MODELS[model], tuple(data.shape), data.outputs)
    chosen["model"] = AuditModel(model, record)
    return Recipe(name=f"{_where(config)}: {config.model} on {config.data}", options=chosen)


def of_audit(
    given: Mapping[str, Any], clipping: Clipping | None, record: Callable[[], None]
) -> Recipe:
    """Return a short run with every kind of layer; `clipping` says what clips its gradients."""
    from torch.nn.functional import cross_entropy

    chosen = dict(given)
    if "epsilon" not in chosen and "noise_multiplier" not in chosen:
        chosen["noise_multiplier"] = NOISE
    ways = list_clippings(given)
    clipping = clipping or ways[0]
    value_checks.one_of(ways, clipping=clipping)
    config = configure({**chosen, "private": True, "batch_size": RECORDS})
    chosen = {
        "kernels": "default",
        **chosen,
        "private": True,
        "optimizer": SGD.name,
        "lr": 0.01,
        "momentum": 0.0,
        "batch_size": round(RATE * RECORDS / _count_batches(config)),
        "epochs": STEPS,
        "max_steps": STEPS,
        "name": "audit",
        "model": models.make(clipping, record),
        "data": Data(models.make_records(RECORDS, config.seed), classes=models.CLASSES),
        "loss": cross_entropy,
    }
    return Recipe(name=f"{_where(config)}: a model {CLIPPING[clipping]}", options=chosen)


def _where(config: RunConfig) -> str:
    """Name the strategy, its workers, and how gradients are limited unless by default."""
    assert config.privacy is not None
    way = config.privacy.clipping
    limited = "" if way == "flat" else f", {way} clipping"
    return f"{config.strategy.name}, {config.workers} workers{limited}"


def _count_batches(config: RunConfig) -> int:
    """Return how many batches of that size all workers take in a step."""
    return config.workers if config.strategy.supports.whole_batches else 1
