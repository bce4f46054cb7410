"""One budget for all private runs on a data set: every way to start a run is held to it."""

import json
import shutil
from contextlib import suppress

import pytest
from running import manyhands

import manyhands as mh
from manyhands.errors import ConfigError

BLOBS = {"model": "mlp", "data": "blobs", "kernels": "default", "batch_size": 50, "progress": False}
ALONE = {**BLOBS, "strategy": "sequential", "workers": 1, "epochs": 1}
NOISE = mh.Privacy(noise_multiplier=3.0)  # one run fits, a second only if it is half as long
FLAGS = ("--data", "blobs", "--model", "mlp", "--batch-size", 50, "--epochs", 1)


class Look:
    """Removes the run's folder after an epoch."""

    def __init__(self, folder):
        self.folder = folder

    def on_epoch(self, *_, **__):
        shutil.rmtree(self.folder)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Give the test its own key and a budget for blobs; the current folder is empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "work"
    folder.mkdir()
    done = manyhands("privacy", "--data", "blobs", "--budget", 0.27, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "spent: 0.0000 by 0 runs" in done.stdout
    return folder


def state(place):
    done = manyhands("privacy", "--data", "blobs", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_runs_resumed_runs_and_initial_weights_share_it(place):
    first = mh.fit(**ALONE, privacy=NOISE, output=str(place / "1"), checkpoint_every="10steps")
    one = state(place)["spent"]
    assert state(place)["runs"] == 1
    assert 0.1 < one < 0.25
    mh.fit(**ALONE, privacy=NOISE, init=str(first.output / "model.safetensors"),
           output=str(place / "2"), max_steps=20, checkpoint_every="10steps")  # fmt: skip
    two = state(place)
    assert one < two["spent"] <= 0.27
    with pytest.raises(ConfigError, match=r"is left .* would cost .* would fit"):
        mh.fit(**ALONE, privacy=NOISE, output=str(place / "3"))
    assert not (place / "3").exists()
    with pytest.raises(ConfigError, match="a run without privacy would exceed any"):
        mh.fit(**ALONE, output=str(place / "4"))
    fixed = mh.Privacy(noise_multiplier=3.0, fixed_key=1)
    with pytest.raises(ConfigError, match="a run with a fixed key promises nothing"):
        mh.fit(**ALONE, privacy=fixed, output=str(place / "4"))
    with pytest.raises(ConfigError, match="is spent"):
        mh.fit(resume=str(place / "2"), progress=False)  # nothing is left of its own steps
    assert state(place) == two


def test_a_sweep_is_refused_as_a_whole_or_reserved_as_a_whole(place):
    sweep = ("compare", *FLAGS, "--strategies", "sequential", "--private", "true",
             "--noise-multiplier", 4,
             "--lr", "0.1,0.2", "--output", "sweep")  # fmt: skip
    done = manyhands(*sweep, "--repeats", 2, cwd=place)
    assert done.returncode == 2, done.stderr
    assert "these 4 runs" in done.stderr
    assert not any((place / "sweep" / "runs").glob("*"))
    assert state(place)["runs"] == 0
    done = manyhands(*sweep[:-1], "two", "--repeats", 1, cwd=place)
    assert done.returncode == 0, done.stderr
    after = state(place)
    assert after["runs"] == 2  # by reservation; the runs did not pay again
    done = manyhands(*sweep[:-1], "two", "--repeats", 1, cwd=place)  # nothing is left to do
    assert done.returncode == 0, done.stderr
    assert state(place) == after


def test_what_is_refused_before_its_workers_start_gives_its_reservation_back(place):
    taken = mh.fit(**ALONE, privacy=NOISE, output=str(place / "run"), max_steps=2)
    before = state(place)
    assert before["runs"] == 1
    with pytest.raises(ConfigError, match="already holds a run"):
        mh.fit(**ALONE, privacy=NOISE, output=str(taken.output), max_steps=3)
    assert state(place) == before


def test_a_run_whose_folder_disappears_has_paid(place):
    """The attack: look at the test accuracy, then remove the folder, so that the run fails."""

    with suppress(Exception):
        mh.fit(**ALONE, privacy=NOISE, output=str(place / "run"), callbacks=[Look(place / "run")],
               callbacks_in="caller")  # fmt: skip
    assert not (place / "run" / "ledger-0.jsonl").exists()
    assert state(place)["runs"] == 1
