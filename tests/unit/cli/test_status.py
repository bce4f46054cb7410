"""A long computation says what it is doing."""

from __future__ import annotations

import io
import json
import sys

import pytest

from manyhands.cli import privacy, status
from manyhands.cli.app import main
from manyhands.cli.status import Status


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until a test moves it; nobody looks at it in another thread."""
    time = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: time[0])
    monkeypatch.setattr(Status, "_follow", lambda self: None)
    return time


def test_a_stage_is_printed_once_it_has_lasted(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    with Status("privacy") as shown:
        for _ in range(40):  # seconds
            now[0] += 1
            shown.print_if_due()
            if now[0] == 1:
                shown.stage("searching")
    assert capsys.readouterr() == ("", "privacy: searching, 3 s\nprivacy: searching, 33 s\n")


def test_stages_are_printed_at_most_every_three_seconds(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    with Status("prepare") as shown:
        for number in range(1, 13):  # half seconds
            now[0] += 0.5
            shown.stage(f"stage {number}")
            shown.print_if_due()
    assert capsys.readouterr().err == "prepare: stage 6, 3 s\nprepare: stage 12, 6 s\n"


def test_what_is_short_or_unwanted_prints_nothing(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    with Status("privacy") as shown:
        now[0] += 2
        shown.print_if_due()
    with Status("privacy", shown=False):
        now[0] += 60
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_a_line_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Status("prepare") as shown:
        shown.stage("counting the rows")
    assert "counting the rows" in screen.getvalue()


def test_a_budget_names_its_stages() -> None:
    stages: list[str] = []
    given = {"epsilon": 3.0, "delta": 1e-5, "batch_size": 100, "max_steps": 10}
    privacy.compute_budget(1000, on_stage=stages.append, **given)
    assert len(stages) == 4
    assert stages[-2] == "computing ε over 10 steps"


def test_the_command_prints_stages_beside_its_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "FIRST", -1.0)
    stage = Status.stage

    def looked_at(self: Status, name: str) -> None:
        stage(self, name)
        self.print_if_due()

    monkeypatch.setattr(Status, "stage", looked_at)
    monkeypatch.setattr(Status, "_follow", lambda self: None)
    given = "--noise-multiplier 2 --delta 1e-5 --batch-size 100 --max-steps 10 --json"
    with pytest.raises(SystemExit) as ended:
        main(["privacy", "--examples", "1000", *given.split()])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["steps"] == 10
    assert [line.rpartition(",")[0] for line in err.splitlines()] == [
        "privacy: searching for the noise multiplier",
        "privacy: computing ε by two accountants",
        "privacy: computing ε over 10 steps",
        "privacy: computing what attacks can reach",
    ]
