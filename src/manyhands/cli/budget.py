"""The budget of a data set, for `manyhands privacy --data`: set once, and shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.privacy.budget import Budget
    from manyhands.privacy.budget_filter import Rule


@dataclass(frozen=True)
class Settings:
    """A budget as the command line asks for it; without an epsilon it is only shown."""

    epsilon: float | None
    delta: float | None
    rule: Rule
    ledger: Path | None
    count: str | None


def show_budget(
    data: str, settings: Settings, options: Mapping[str, Any], output: Path | None, *, as_json: bool
) -> str:
    """Return the state of a data set's budget in words or as JSON, setting it first if asked.

    Raises:
        ConfigError: If it has none, or the ledger cannot be trusted.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if given or output is not None:
        name = next(iter(given), "output")
        raise ConfigError(
            f"{name} is given with data, which shows the budget of a data set; give examples "
            "instead of data to plan a run"
        )
    account, examples = _open(data, settings)
    if account is None:
        raise ConfigError(
            f"the records of {data} have no budget; set one with --budget EPSILON, before the "
            "runs that it is to bound"
        )
    state = account.read()
    spent = state.cost()
    facts = {
        "data": data,
        "fingerprint": account.fingerprint,
        "examples": examples,
        "epsilon": state.epsilon,
        "delta": state.delta,
        "rule": state.rule,
        "spent": spent,
        "left": max(0.0, state.epsilon - spent),
        "runs": len(state.entries),
        "since": state.since,
        "ledger": str(state.path),
        "anchor": str(account.anchor),
    }
    return json.dumps(facts) if as_json else "\n".join(_describe(facts))


def _open(data: str, settings: Settings) -> tuple[Budget | None, int]:
    from manyhands.config.privacy import Privacy
    from manyhands.data import store
    from manyhands.data.stored import About
    from manyhands.launch.scratch import private_folder
    from manyhands.privacy.budget import Budget
    from manyhands.privacy.data_fingerprint import fingerprint, load_key
    from manyhands.training.budget import read_runs

    key = load_key()
    with private_folder() as folder:
        stored = store(data, folder / "data")
        mark, examples = fingerprint(stored, key), About.read(stored).train
    if settings.epsilon is None:
        if settings.delta is not None:
            raise ConfigError("delta is given without budget; the budget of a data set has its own")
        return Budget.find(mark, key), examples
    if load_key() != key:
        raise ConfigError(
            "the key of the fingerprints cannot be kept, so no later run would know that it is on "
            "the same data; make ~/.config (or XDG_CONFIG_HOME) writable"
        )
    delta = Privacy(epsilon=1.0, delta=settings.delta).resolve_delta(examples)
    folders = [Path(each) for each in settings.count.split(",")] if settings.count else []
    made = Budget.create(
        mark,
        key,
        epsilon=settings.epsilon,
        delta=delta,
        rule=settings.rule,
        data=data,
        ledger=settings.ledger,
        counted=read_runs(folders, mark),
    )
    return made, examples


def _describe(facts: Mapping[str, Any]) -> list[str]:
    """Return the state in words."""
    from manyhands.privacy.accountant import write_bound

    rule = {
        "adaptive": "adaptive: results of runs may decide on later runs",
        "fixed": "fixed: holds only if all runs were planned before the first result",
    }
    spent, left = write_bound(facts["spent"]), write_bound(facts["left"], up=False)
    return [
        f"budget of {facts['data']} ({facts['examples']:,} records): "
        f"ε = {facts['epsilon']:g} at δ = {facts['delta']:g}, since {facts['since']}",
        f"spent: {spent} by {facts['runs']} runs, each with all its planned steps",
        f"left: {left}; several runs together cost less than the sum of their ε",
        f"rule: {rule[facts['rule']]}",
        f"ledger: {facts['ledger']}",
        f"anchor: {facts['anchor']}",
    ]
