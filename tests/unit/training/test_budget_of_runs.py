"""Runs are held to the budget of their data; data without records here is let through."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import manyhands as mh
from manyhands.data import store
from manyhands.errors import ConfigError
from manyhands.experiments.audit.run import audit
from manyhands.privacy.accountant import Event
from manyhands.privacy.budget import Budget
from manyhands.privacy.data_fingerprint import fingerprint, load_key
from manyhands.privacy.weights_provenance import Provenance
from manyhands.training import budget, preflight
from manyhands.training.start_fit import planned_run

OPTIONS: dict[str, Any] = {"strategy": "sequential", "workers": 1, "batch_size": 50, "epochs": 1}
NOISE = mh.Privacy(noise_multiplier=3.0)


class Due(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((5,), float(index)), index % 2


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return store("blobs", tmp_path / "stored")


@pytest.fixture
def account(stored: Path) -> Budget:
    key = load_key()
    return Budget.create(fingerprint(stored, key), key, epsilon=1.0, delta=1e-4)


def test_lazy_data_is_let_through(account: Budget, tmp_path: Path) -> None:
    lazy = store(mh.Data(Due(), Due(), classes=2, lazy=True), tmp_path / "lazy")
    assert budget.find(lazy) is None


@pytest.mark.parametrize("started", [True, False])
def test_only_what_was_not_started_is_given_back(
    account: Budget, stored: Path, tmp_path: Path, started: bool
) -> None:
    """The output folder is not there, as if somebody had removed it."""
    run = planned_run("mlp", "blobs", **OPTIONS, privacy=NOISE, output=str(tmp_path / "gone"))
    found = Provenance(fingerprint=account.fingerprint)

    def fail() -> None:
        with budget.reserved(run, found, stored) as made:
            if started:
                budget.start(made, tmp_path / "gone")
            raise ConfigError("failed")

    with pytest.raises(ConfigError, match="failed"):
        fail()
    assert len(account.read().entries) == started


def test_an_audit_is_refused_and_costs_nothing(account: Budget) -> None:
    """What it records has no noise; and its canaries cost what no run needs."""
    with pytest.raises(ConfigError, match=r"budget of epsilon 1 .*an audit's record.*same shape"):
        audit({"model": "mlp", "data": "blobs", **OPTIONS, "noise_multiplier": 3.0})
    assert not account.read().entries


def two_double_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.Linear(8, 4)).double()


@pytest.mark.parametrize(
    ("model", "digits"), [("mlp", 24), (two_double_layers, 53), (torch.nn.LazyLinear(4), 24)]
)
def test_noise_too_large_for_exact_sums_is_refused_before_it_costs_anything(
    account: Budget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any, digits: int
) -> None:
    monkeypatch.setattr("manyhands.launch.launcher.launch", lambda *_: pytest.fail("started"))
    options = OPTIONS | {"strategy": "sync", "workers": 2, "output": str(tmp_path / "out")}
    options["privacy"] = mh.Privacy(noise_multiplier=2.0 ** (digits - 5))
    with pytest.raises(ConfigError, match=r"would not be exact: .* × √"):
        mh.fit(model, "blobs", **options)
    with pytest.raises(ConfigError, match=r"would not be exact: .* × √"):
        budget.reserve_all({"out": planned_run(model, "blobs", **options)})
    assert not account.read().entries
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("outputs", "fits"), [(200, True), (20_000, False)])
def test_an_epsilon_that_needs_much_noise_fits_small_models(
    stored: Path, outputs: int, fits: bool
) -> None:
    options = OPTIONS | {"strategy": "sync", "workers": 2, "max_steps": 1, "batch_size": 1000}
    privacy = mh.Privacy(epsilon=1e-4, delta=1e-4)
    run = planned_run(torch.nn.LazyLinear(outputs), "blobs", **options, privacy=privacy)
    with nullcontext() if fits else pytest.raises(ConfigError, match="would not be exact"):
        preflight.check_noise(run, stored, ())


def test_a_reservation_without_the_initial_weights_is_not_taken(
    account: Budget, stored: Path, tmp_path: Path
) -> None:
    run = planned_run("mlp", "blobs", **OPTIONS, privacy=NOISE, output=str(tmp_path / "x"))
    budget.reserve_all({str(tmp_path / "x"): run})
    budget.reserve_all({str(tmp_path / "x"): run})
    assert len(account.read().entries) == 1
    earlier = Event(40, 0.025, 3.0)
    found = Provenance(fingerprint=account.fingerprint, before=(earlier,), earlier=("a",))
    with budget.reserved(run, found, stored):
        assert account.read().events["a"] == earlier
