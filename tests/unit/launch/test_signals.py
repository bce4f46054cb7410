"""Signals become exceptions outside of runs, and the caller's handlers come back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.cli import app
from manyhands.launch import signals
from manyhands.launch.scratch import private_folder

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """See that every test puts back the handlers that it found: those of a program in front."""
    before = [signal.getsignal(signum) for signum in SIGNALS]
    yield
    after = [signal.getsignal(signum) for signum in SIGNALS]
    assert after == before


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_command_ends_with_the_signals_code_also_where_other_code_swallows_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], signum: signal.Signals
) -> None:
    def swallow(*_: Any) -> None:
        try:
            signal.raise_signal(signum)
        except BaseException:  # as code of a user's may
            return

    monkeypatch.setattr(app, "_run", swallow)
    with pytest.raises(SystemExit) as ended:
        app.main([])
    assert ended.value.code == 128 + signum
    assert signals.describe(signum) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signum", "kind"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, mh.ManyhandsError),
        (signal.SIGHUP, mh.ManyhandsError),
    ],
)
def test_a_caller_of_fit_gets_an_exception_before_training(
    monkeypatch: pytest.MonkeyPatch, signum: signal.Signals, kind: type[BaseException]
) -> None:
    def stopped(*_: Any) -> None:
        try:
            signal.raise_signal(signum)
        except Exception:
            raise AssertionError("swallowed") from None

    monkeypatch.setattr("manyhands.training.run.Run.launch", stopped)
    with pytest.raises(kind) as raised:
        mh.fit("mlp", "blobs")
    assert getattr(raised.value, "exit_code", 130) == 128 + signum


def test_handlers_of_the_users_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _: seen.append(signum))
    try:
        with signals.raise_on_signals():
            signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_a_group_of_others_handlers_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    with signals.raise_on_signals():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_that_comes_while_cleaning_up_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def removing(path: Path, **_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for file in sorted(path.iterdir()):
            file.unlink()
        path.rmdir()

    def use() -> None:
        with signals.RaiseOnSignals(), private_folder() as folder:
            (folder / "data").touch()
            assert folder.stat().st_mode & 0o077 == 0
            monkeypatch.setattr("shutil.rmtree", removing)

    with pytest.raises(signals.SignalReceived):
        use()
    assert list(tmp_path.iterdir()) == []
