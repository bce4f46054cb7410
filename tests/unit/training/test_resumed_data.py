"""A private run resumes with the records that it began with."""

from types import SimpleNamespace

import numpy as np
import pytest

import manyhands.strategies  # noqa: F401  (registers them)
from manyhands.config.options import configure
from manyhands.data import Data, store
from manyhands.errors import ConfigError
from manyhands.privacy.ledger import Ledger
from manyhands.training.find_provenance import find_provenance

TERMS = {"steps": 5, "rate": 0.1, "noise_multiplier": 1.0, "clip": 1.0, "delta": 1e-3}


@pytest.fixture(autouse=True)
def _own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def ask(tmp_path, seed, checkpoint=None):
    """Return where a private run on records of that seed starts from."""
    x = np.random.default_rng(seed).normal(size=(40, 3)).astype(np.float32)
    stored = store(Data((x, np.arange(40) % 2)), tmp_path / f"data-{seed}")
    config = configure(
        {"private": True, "noise_multiplier": 1.0, "output": str(tmp_path), "model": "mlp"}
    )
    return find_provenance(
        SimpleNamespace(config=config, model="mlp", checkpoint=checkpoint), stored
    )


def test_other_records_of_the_same_name_and_number_are_refused(tmp_path):
    began = ask(tmp_path, 0)
    Ledger.begin(
        tmp_path / "ledger-0.jsonl", run="a", limit=5, terms=TERMS, provenance=began.as_dict()
    ).close()
    assert ask(tmp_path, 0, checkpoint="one") == began
    with pytest.raises(ConfigError, match="records are not those that the private run began with"):
        ask(tmp_path, 1, checkpoint="one")


def test_where_the_key_is_another_nobody_can_tell(tmp_path, monkeypatch):
    began = ask(tmp_path, 0)
    Ledger.begin(
        tmp_path / "ledger-0.jsonl", run="a", limit=5, terms=TERMS, provenance=began.as_dict()
    ).close()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert ask(tmp_path, 0, checkpoint="one") == began
