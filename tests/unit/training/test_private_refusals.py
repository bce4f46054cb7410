"""What cannot be private is refused before anything starts, with the reason and what to do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyhands as mh
from manyhands.errors import ConfigError

X = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
Y = np.arange(60) % 3
DATA = mh.Data((X, Y))


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(
        "manyhands.launch.launcher.launch", lambda *_: pytest.fail("workers were started")
    )


def refused(told: str, model: Any = "logistic", *, privacy: mh.Privacy, **given: Any) -> None:
    with pytest.raises(ConfigError, match=told):
        mh.fit(model, DATA, **{"output": "out", "batch_size": 8, "privacy": privacy, **given})
    assert not Path("out").exists()


@pytest.mark.parametrize("delta", [1 / 60, 0.1, 0.9])
def test_a_delta_that_lets_one_record_out_is_refused(delta: float) -> None:
    told = "delta is .* for 60 records; expected less than 1/n.*Give 0.01 or less"
    refused(told, privacy=mh.Privacy(noise_multiplier=2.0, delta=delta))


def test_a_limit_counts_for_delta() -> None:
    refused("for 20 records", privacy=mh.Privacy(noise_multiplier=2.0, delta=0.05), limit=20)
