"""What a run shows of its progress, above all where there is no terminal."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.config.options import configure
from manyhands.training import progress
from manyhands.training.progress import Lines, Progress
from manyhands.worker.clock import Epoch, Interval


def epoch(number: int, *, loss: float | None = 30.0, **more: Any) -> dict[str, Any]:
    """Return what rank 0 announces after an epoch of 60 examples."""
    found: dict[str, Any] = {"epoch": number, "seconds": 2.5, "test_loss": None, "test_metrics": {}}
    return found | {"workers": [[loss, 50, 60], [90.0, 50, 60]]} | more


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until a test moves it."""
    time = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: time[0])
    return time


def test_without_a_terminal_there_is_a_line_an_epoch(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    with Progress(configure({"workers": 2, "epochs": 3}), shown=None) as bar:
        for number in (1, 2, 3):
            now[0] += 2
            bar.watch([], [epoch(number, test_loss=0.25, test_metrics={"accuracy": 0.9})])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "sync × 2: starting",
        *(
            f"epoch {n} of 3: 2.5 s, loss 0.5, test accuracy 90.00 %, test loss 0.25"
            for n in (1, 2, 3)
        ),
    ]


def test_there_is_one_line_a_second_and_the_last_is_not_lost(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    with Progress(configure({"epochs": 100}), shown=None) as bar:
        for number in range(1, 101):
            now[0] += 0.1
            bar.watch([], [epoch(number)])
    said = capsys.readouterr().err.splitlines()
    assert 10 <= len(said) <= 12
    assert said[-1].startswith("epoch 100 of 100: ")


def test_a_line_that_waits_is_printed_when_it_is_time(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    lines = Lines()
    lines.print("first")
    lines.print("second")
    assert capsys.readouterr().err == "first\n"
    now[0] += 1
    lines.flush_if_due()
    lines.flush_if_due()
    assert capsys.readouterr().err == "second\n"


def test_a_private_run_says_nothing_of_its_loss() -> None:
    assert progress.epoch_line(epoch(1, loss=None), 10) == "epoch 1 of 10: 2.5 s"
    status = Epoch(1, loss=None, examples=60, steps=3).status(3, 12)
    assert progress.epoch_line(status, 2) == "step 3, 0.2 epochs of 2"


def test_a_long_epoch_shows_signs_of_life(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    silence = Interval(60.0)
    assert not silence.over()
    now[0] += 60
    assert silence.over()
    assert not silence.over()
    status = Epoch(4, loss=12.0, examples=100, steps=40).status(1240, 100)
    with Progress(configure({"epochs": 10}), shown=None, joined=True) as bar:
        now[0] += 2
        bar.watch([], [status])
    assert capsys.readouterr().err.splitlines()[1:] == ["step 1,240, 3.4 epochs of 10, loss 0.12"]


def test_who_wants_nothing_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(configure({}), shown=False) as bar:
        bar.watch([], [epoch(1), Epoch(1).status(3, 12)])
    assert capsys.readouterr() == ("", "")
