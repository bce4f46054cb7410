"""Finds out which data and weights a private run starts from, before anything is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from manyhands.comm.rendezvous import ask_leader
from manyhands.config.run import MODELS
from manyhands.data.stored import About
from manyhands.errors import ConfigError
from manyhands.privacy import accountant, weights_provenance
from manyhands.privacy.accountant import Event
from manyhands.privacy.data_fingerprint import fingerprint, load_key
from manyhands.privacy.weights_provenance import ASSUMED, FROM_SEED, Provenance
from manyhands.training import preflight

if TYPE_CHECKING:
    from manyhands.comm import Communicator
    from manyhands.config.run import RunConfig

# The attribute of a module that a run trained: the file that holds its weights.
ORIGIN = "manyhands_trained_in"


class PrivateRequest(preflight.Subject, Protocol):
    """The parts of a run that decide what it starts from, and what it costs."""

    @property
    def data(self) -> Any:
        """The data, or its name."""

    @property
    def checkpoint(self) -> object:
        """The checkpoint that the run resumes from, if any."""


def find_provenance(run: PrivateRequest, stored: Path) -> Provenance | None:
    """Return what a private run starts from, its data being stored there; None of another run.

    Raises:
        ConfigError: If the initial weights may hold what the statement would not cover, or if
            the noise of the run is too large for sums over its workers to be exact.
    """
    found = _find(run, stored)
    if found:
        preflight.check_noise(run, stored, found.before)
    return found


def _find(run: PrivateRequest, stored: Path) -> Provenance | None:
    config, model = run.config, run.model
    privacy = config.privacy
    if privacy is None or config.stream is not None:
        return None
    mark = fingerprint(stored, load_key())
    if run.checkpoint:
        stated = Provenance.of_run(Path(str(config.output)))
        if stated:
            weights_provenance.check_resumed(stated, mark)
        return stated or Provenance(fingerprint=mark, weights=_describe_older(config, model))
    file = Path(config.init) if config.init else _file_of_module(model)
    if privacy.init_public:
        if config.init is None and isinstance(model, str) and model in MODELS:
            raise ConfigError(
                f"init_public is given, but the weights of {model} are drawn from the seed; give "
                "init as well, or leave it out"
            )
        what = str(file) if file else _describe_model(config, model)
        return Provenance(fingerprint=mark, weights=weights_provenance.declared_public(what))
    if file is None:
        seeded = isinstance(model, str) and model in MODELS
        origin = FROM_SEED if seeded else f"{_describe_model(config, model)}: {ASSUMED}"
        return Provenance(fingerprint=mark, weights=origin)
    _check_unchanged(model, file)
    of_weights = weights_provenance.weights_of_file(file, mark)
    if privacy.epsilon is not None:
        whole = About.read(stored).train
        delta = privacy.resolve_delta(min(whole, config.limit or whole))
        accountant.check_budget(of_weights.before, privacy.epsilon, delta)
    return of_weights


def share_provenance(
    group: Communicator, find: Callable[[], Provenance | None]
) -> Provenance | None:
    """Return what rank 0 finds on every rank: fingerprints need one key. Collective."""

    def read() -> str:
        mine = find()
        if mine is None:
            return ""
        planned = astuple(mine.planned) if mine.planned else None
        return json.dumps([mine.as_dict(), mine.run, planned])

    if not (shared := ask_leader(group, read)):
        return None
    found, run, planned = json.loads(shared)
    event = Event(*planned) if planned else None
    return replace(Provenance.from_dict(found), run=run, planned=event)


def _describe_older(config: RunConfig, model: Any) -> str:
    """Say what is known of a run whose ledger does not state its initial weights."""
    if config.init is None and isinstance(model, str) and model in MODELS:
        return FROM_SEED
    what = config.init or _describe_model(config, model)
    return f"{what}, which the run did not record when it began: {ASSUMED}"


def _describe_model(config: RunConfig, model: Any) -> str:
    if _is_module(model):
        return f"the model as it was passed ({type(model).__name__})"
    return f"built by {config.model}"


def _is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")  # without it there is no module
    return torch is not None and isinstance(model, torch.nn.Module)


def _file_of_module(model: Any) -> Path | None:
    """Return the file with the weights of a module that `Result.model` returned."""
    origin = getattr(model, ORIGIN, None) if _is_module(model) else None
    return Path(origin) if isinstance(origin, str) else None


def _check_unchanged(model: Any, file: Path) -> None:
    """Refuse a module that a run returned and that was changed since."""
    if _file_of_module(model) is None:
        return
    import torch
    from safetensors.torch import load_file

    stored = load_file(file) if file.exists() else {}
    mine = model.state_dict()
    if mine.keys() != stored.keys() or any(
        not torch.equal(value.cpu(), stored[name]) for name, value in mine.items()
    ):
        raise ConfigError(
            f"the model was trained in {file.parent} and its weights have changed since, or are "
            "no longer there; add init_public to declare that no training record influenced them, "
            "or pass a new model"
        )
