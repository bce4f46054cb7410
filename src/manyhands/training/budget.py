"""Holds runs to the budget of their data set: reserves their cost before anything starts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from manyhands.config.run import RunConfig
from manyhands.data import store
from manyhands.data.stored import About
from manyhands.errors import ConfigError
from manyhands.launch.scratch import private_folder
from manyhands.privacy import budget, ledger
from manyhands.privacy.accountant import Event
from manyhands.privacy.budget import Budget
from manyhands.privacy.budget_state import Plan
from manyhands.privacy.data_fingerprint import fingerprint, load_key
from manyhands.privacy.steps_rate_noise import solve
from manyhands.privacy.weights_provenance import Provenance
from manyhands.training.find_provenance import PrivateRequest, find_provenance


def find(stored: Path) -> Budget | None:
    """Return the budget of the data that is stored there; None where it has none.

    Data that is read when it is due has no records here, hence no fingerprint and no budget;
    private runs refuse it.
    """
    if not budget.any_exists() or About.read(stored).lazy:
        return None
    key = load_key()
    return Budget.find(fingerprint(stored, key), key)


@contextmanager
def reserved(
    run: PrivateRequest, provenance: Provenance | None, stored: Path
) -> Iterator[Provenance | None]:
    """Reserve a run's cost while it is started and trains; yield what it starts from.

    What fails before `start` is called gets its reservation back; what is killed does not.

    Raises:
        ConfigError: If the budget of its data set does not allow the run.
    """
    account = None if run.config.stream is not None else find(stored)
    if account is None:
        yield provenance
        return
    _refuse_unbounded(run, account)
    assert provenance is not None
    output = Path(str(run.config.output))
    own = ledger.read_head(output) if run.checkpoint else None
    paid = ledger.read_event(output) if own else None
    if own and paid:  # its steps are counted, or were taken before there was a budget
        account.resume(str(own["run"]), str(output.absolute()), paid, provenance.costs())
        yield provenance
        return
    event = plan_event(run.config, stored, provenance)
    place = str(Path(run.config.output).absolute()) if run.config.output else ""
    name = account.begin(place, event, provenance.costs())
    try:
        yield replace(provenance, run=name, planned=event)
    except BaseException:
        account.release(name)  # nothing, if it was started
        raise


def start(provenance: Provenance | None, output: Path) -> str:
    """Note in the budget that a run's workers are about to start; return the run's id there.

    From now on the run costs all its steps, whatever becomes of it and of its folder.
    """
    if provenance is None or not provenance.run:
        return ""
    Budget(provenance.fingerprint, load_key()).start(provenance.run, str(output.absolute()))
    return provenance.run


def reserve_all(plans: Mapping[str, PrivateRequest]) -> None:
    """Reserve the runs of a sweep on one data set together, by their folders.

    A run whose reservation is there already, and that has not started, keeps it.

    Raises:
        ConfigError: If the budget does not allow all of them; then none is reserved.
    """
    with private_folder() as folder:
        stored = store(next(iter(plans.values())).data, folder / "data")
        account = find(stored)
        if account is None:
            return
        state = account.read()
        new: dict[str, Plan] = {}
        for place, run in plans.items():
            _refuse_unbounded(run, account)
            provenance = find_provenance(run, stored)
            event = plan_event(run.config, stored, provenance)
            before = provenance.costs() if provenance else {}
            if state.find_planned(place, event, before) is None:
                name = secrets.token_hex(8)
                new[name] = (place, {**before, name: event})
        account.reserve(new)


def read_runs(folders: Sequence[Path], mark: str) -> dict[str, Plan]:
    """Return what the private runs in these folders cost, of runs or of sweeps.

    Raises:
        ConfigError: If a folder has none, or one on other data.
    """
    found: dict[str, Plan] = {}
    for folder in folders:
        inside = sorted(folder.glob("runs/*")) if (folder / "runs").is_dir() else [folder]
        inside = [each for each in inside if any(each.glob("ledger-*.jsonl"))]
        if not inside:
            raise ConfigError(
                f"{folder} holds no ledger of a private run, so nothing can be counted"
            )
        for each in inside:
            head, event = ledger.read_head(each), ledger.read_event(each)
            stated = Provenance.of_run(each)
            assert head is not None
            assert event is not None
            if stated is None or stated.fingerprint != mark:
                raise ConfigError(f"the run in {each} does not have the fingerprint of this data")
            name = str(head["run"])
            found[name] = (str(each.absolute()), {**stated.costs(), name: event})
    return found


def plan_event(config: RunConfig, stored: Path, provenance: Provenance | None = None) -> Event:
    """Return the planned steps of a private run on the data that is stored there."""
    whole = About.read(stored).train
    before = provenance.before if provenance else ()
    terms = solve(config, min(whole, config.limit or whole), before)
    return Event(terms.steps, terms.rate, terms.noise_multiplier)


def _refuse_unbounded(run: PrivateRequest, account: Budget) -> None:
    """Refuse a run whose cost has no bound."""
    reason, privacy = "", run.config.privacy
    if privacy is None:
        reason = "and a run without privacy would exceed any; add private and epsilon"
    elif privacy.fixed_key is not None:
        reason = "and a run with a fixed key promises nothing; leave fixed_key out"
    elif getattr(run.model, "observed", False):
        reason = "and an audit's record holds facts of its records without noise; audit public data"
        reason += " of the same shape"
    if reason:
        state = account.read()
        raise ConfigError(
            f"the data set has a budget of epsilon {state.epsilon:g} at delta {state.delta:g}, "
            f"{reason}, or train on other data (ledger: {state.path})"
        )
