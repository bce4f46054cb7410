"""What a run shows of its progress, above all where there is no terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest

from manyhands.config.options import configure
from manyhands.launch.status_board import Note
from manyhands.training import progress
from manyhands.training.progress import Lines, Progress
from manyhands.worker.clock import Epoch, Interval


def epoch(number: int, *, loss: float | None = 30.0, **more: Any) -> dict[str, Any]:
    """Return what rank 0 announces after an epoch of 60 examples per worker, in 10 steps."""
    found: dict[str, Any] = {"epoch": number, "seconds": 2.5, "test_loss": None, "test_metrics": {}}
    found |= {"step": 10 * number, "stopped": "epochs", "trained": 120 * number}
    return found | {"workers": [[loss, 50, 60], [90.0, 50, 60]]} | more


# An epoch's seconds are those since the run began: 2.5 s for one, two and three epochs.
PACES = (
    ", 48 examples/s, about 5 s left",
    ", 96 examples/s, about 1 s left",
    ", 144 examples/s",
)


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
            f"epoch {n} of 3: 2.5 s, loss 0.5, test accuracy 90.00 %, test loss 0.25{pace}"
            for n, pace in zip((1, 2, 3), PACES, strict=True)
        ),
    ]


def test_no_epoch_is_left_out_however_short(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    with Progress(configure({"epochs": 100}), shown=None) as bar:
        for number in range(1, 101):
            now[0] += 0.1
            bar.watch([], [epoch(number)])
    shown = capsys.readouterr().err.splitlines()[1:]
    assert [line.partition(":")[0] for line in shown] == [
        f"epoch {n} of 100" for n in range(1, 101)
    ]


def test_of_steps_within_a_second_the_last_is_shown(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    lines = Lines()
    lines.print("starting", keep=True)
    for step in range(10):
        lines.print(f"step {step}")
    lines.print("epoch", keep=True)
    lines.print("step 10")
    lines.flush()
    assert capsys.readouterr().err.splitlines() == ["starting", "epoch", "step 10"]


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


def test_a_terminal_shows_loss_accuracy_and_pace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with Progress(configure({"workers": 2, "epochs": 3, "batch_size": 64}), shown=True) as bar:
        moment = {"epoch": 0.5, "steps": 9, "test_loss": 0.25, "test_metrics": {"accuracy": 0.9}}
        bar.watch([], [{"evaluation": moment}])
        task = bar.bar.tasks[bar.task]
        for step in (10, 20, 30):
            notes = [Note(rank, None, step + rank, 100, "compute", 0.0) for rank in (0, 1)]
            bar.watch(notes, [])
        parts = task.fields["state"].split(" · ")
        assert parts[0] == "step 30/100"
        assert parts[1:3] == ["test loss 0.25", "accuracy 90.00 %"]
        assert re.fullmatch(r"[\d,]+ examples/s", parts[3])
    assert "examples/s" in capsys.readouterr().err


@pytest.mark.parametrize(("strategy", "each"), [("sync", 16), ("averaging", 16), ("server", 64)])
def test_a_step_of_a_worker_has_its_share_of_the_batch(strategy: str, each: int) -> None:
    config = configure({"strategy": strategy, "workers": 4, "batch_size": 64})
    assert Progress(config, shown=False).per_step == each


def test_a_private_run_says_nothing_of_its_pace() -> None:
    assert progress.pace(epoch(1, loss=None, trained=None), 3) == ""


def test_the_pace_is_of_the_examples_that_the_group_trained() -> None:
    """Of an asynchronous group worker 0 knows only its own row."""
    own = epoch(2, workers=[[30.0, 50, 60]], trained=500)
    assert progress.pace(own, 2) == ", 200 examples/s"


@pytest.mark.parametrize(
    ("max_steps", "left"),
    [(None, ", about 5 s left"), (40, ", about 5 s left"), (26, ", about 4 s left"), (10, "")],
)
def test_the_time_left_ends_at_the_last_step(max_steps: int | None, left: str) -> None:
    assert progress.pace(epoch(1), 3, max_steps) == f", 48 examples/s{left}"


def test_max_steps_reach_the_lines(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    with Progress(configure({"epochs": 100, "max_steps": 20}), shown=None) as bar:
        bar.watch([], [epoch(1)])
    assert capsys.readouterr().err.endswith("48 examples/s, about 2 s left\n")  # rounds to even


def test_a_run_that_has_stopped_has_no_time_left() -> None:
    assert progress.pace(epoch(1, stopped="target_accuracy"), 3) == ", 48 examples/s"


def test_the_loss_of_an_epoch_is_a_mean() -> None:
    assert progress.judge(epoch(1)) == {"loss": "loss 0.5"}
    assert progress.judge(epoch(1, loss=None)) == {}
    assert progress.judge({"lost": [1], "workers": 3}) == {}
