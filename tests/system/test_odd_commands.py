"""A few of the odd command lines that `tools/faults/commands.py` tries by the thousand."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/faults"))
import commands


@pytest.mark.timeout(600)
@pytest.mark.parametrize("numbers", [range(30), range(30, 60)], ids=str)
def test_odd_command_lines_finish_or_end_with_a_message(numbers):
    lines = [commands.run(commands.line(number)) for number in numbers]
    assert [one for one in lines if one.defects] == []
    assert any(one.code == 2 for one in lines)
    assert any(one.code == 0 for one in lines)


def test_a_traceback_and_an_end_without_a_message_are_defects():
    broken = commands.run(commands.Line(0, "own", ["train", "--model", "own:make", "--limit", "9"]))
    assert broken.code not in (None, 0)
    silent = commands.Line(0, "own", ["train"], code=1)
    assert commands.judged(silent, "nothing that helps") == ["unclear"]
    assert commands.judged(silent, "Traceback (most recent call last)\nmanyhands: it failed") == [
        "traceback"
    ]
    killed = commands.Line(0, "own", ["train"], code=-11)
    assert commands.judged(killed, "") == ["crashed"]


@pytest.mark.parametrize("kind", ["audit", "report", "privacy"])  # `commands.py` tries all of them
def test_what_is_varied_is_valid_itself(kind):
    assert commands.failing_bases([kind]) == []


def test_a_valid_line_that_fails_is_named(monkeypatch):
    monkeypatch.setitem(commands.BASES, "audit", "audit --canaries 50")
    (failing,) = commands.failing_bases(["audit"])
    assert failing.code == 2
    assert "canaries" in failing.said


def test_a_run_that_is_resumed_and_packed_records_are_varied_too(tmp_path):
    commands.furnish(tmp_path)
    assert list((tmp_path / "stopped/checkpoints").glob("step-*"))
    assert commands.failing_bases(["resume", "report archive"]) == []
    damaged = commands.run(commands.Line(0, "report archive", ["report", "cut.tar.xz"]))
    assert (damaged.code, damaged.defects) == (2, [])
    assert "cut.tar.xz" in damaged.said
