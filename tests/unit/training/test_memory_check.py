"""A run that cannot fit the machine's memory is refused before it starts; any other is not."""

from __future__ import annotations

import doctest
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import manyhands as mh
from manyhands.errors import ConfigError, LaunchError
from manyhands.launch import resources
from manyhands.training import memory_check
from manyhands.training.memory_check import PROCESS

X = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
Y = np.arange(60) % 3
MODEL = 7000 * 4  # bytes of the parameters of a layer of 6 × 1,000


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def started(*_: object) -> None:
        raise ConfigError("the workers were started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("manyhands.launch.launcher.launch", started)
    monkeypatch.setattr(memory_check, "_own_memory", lambda: 0)


def machine(monkeypatch: pytest.MonkeyPatch, *, free: int, whole: int) -> None:
    monkeypatch.setattr(resources, "free_memory", lambda: free)
    monkeypatch.setattr(resources, "whole_memory", lambda: whole)


def starts(**options: Any) -> None:
    given = {"workers": 2, "batch_size": 10, "progress": False, **options}
    with pytest.raises(ConfigError, match="the workers were started"):
        mh.fit(nn.Linear(6, 1000), mh.Data((X, Y)), **given)


def test_doctests_pass() -> None:
    assert doctest.testmod(memory_check).failed == 0


@pytest.mark.parametrize(
    ("options", "need"),
    [
        # Each worker: parameters, gradients and a copy for the record, and its part of 10 examples
        # of 24 bytes; with a server, all 10. The optimizer's state may be divided among workers.
        ({"workers": 1, "optimizer": "sgd"}, PROCESS + 4 * MODEL + 240),
        ({"workers": 2, "optimizer": "sgd"}, 2 * PROCESS + 7 * MODEL + 240),
        ({"workers": 2, "optimizer": "adam"}, 2 * PROCESS + 8 * MODEL + 240),
        ({"strategy": "server", "batch_size": 40}, 3 * PROCESS + 7 * MODEL + 1920),
        ({"batch_size": 1000, "limit": 50}, 2 * PROCESS + 7 * MODEL + 50 * 24),
        ({"batch_size": 20, "accumulate": 2}, 2 * PROCESS + 7 * MODEL + 10 * 24),
    ],
)
def test_what_surely_does_not_fit_is_refused(
    options: dict[str, Any],
    need: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"workers": 2, "batch_size": 10, "optimizer": "sgd", "progress": False, **options}
    machine(monkeypatch, free=need - 1, whole=need - 1)
    told = r"workers is \d, and the run's \d processes need at least .* MB .*; "
    with pytest.raises(LaunchError, match=told + "use fewer workers, a smaller model or batch"):
        mh.fit(nn.Linear(6, 1000), mh.Data((X, Y)), **given)
    machine(monkeypatch, free=need - 1, whole=need)
    starts(**{"optimizer": "sgd", **options})
    assert "warning: workers is" in caplog.text
    caplog.clear()
    machine(monkeypatch, free=need, whole=need)
    starts(**{"optimizer": "sgd", **options})
    assert caplog.text == ""


def test_this_process_and_data_in_memory_count_as_long_as_they_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need = 2 * PROCESS + 7 * MODEL + 240
    monkeypatch.setattr(memory_check, "_own_memory", lambda: 5_000_000)
    monkeypatch.setattr(memory_check, "_in_memory", lambda _: 2_000_000)
    machine(monkeypatch, free=need, whole=need + 6_999_999)
    with pytest.raises(LaunchError, match=r"7\.0 MB hold this process and the data"):
        mh.fit(nn.Linear(6, 1000), mh.Data((X, Y)), workers=2, batch_size=10, optimizer="sgd")
    machine(monkeypatch, free=need, whole=need + 7_000_000)
    starts(optimizer="sgd")


def test_workers_on_other_hosts_have_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, free=1, whole=1)
    monkeypatch.setattr(memory_check, "in_group", lambda: True)
    starts()


def test_data_on_a_disk_in_memory_is_found() -> None:
    mounts = Path("/proc/mounts")
    if not (mounts.exists() and " /dev/shm tmpfs " in mounts.read_text()):
        pytest.skip("there is no disk in memory here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        np.save(Path(name) / "train_x.npy", np.zeros(1000))
        assert memory_check._in_memory(Path(name)) > 8000
