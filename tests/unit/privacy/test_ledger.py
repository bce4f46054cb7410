"""The ledger: it never counts too little, whatever crashes, and sees what was done to it."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.errors import ConfigError
from manyhands.privacy.accountant import Event
from manyhands.privacy.ledger import Ledger, read_event

TERMS = {"rate": 512 / 60_000, "noise_multiplier": 1.069, "clip": 0.1, "delta": 1e-5}


def begin(path: Path, **changed: Any) -> Ledger:
    return Ledger.begin(path, **{"run": "abc", "limit": 1000, "terms": TERMS, **changed})


def resume(path: Path, **changed: Any) -> Ledger:
    return Ledger.resume(path, **{"run": "abc", "terms": TERMS, **changed})


def crash(ledger: Ledger) -> None:
    """Leave the process without a word: the lock goes with it, and nothing is written."""
    os.close(ledger._file)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger-0.jsonl"


def test_a_step_is_on_the_disk_before_pay_returns(path: Path) -> None:
    ledger = begin(path, block=4)
    for step in range(1, 10):
        ledger.pay()
        last = json.loads(path.read_text().splitlines()[-1])
        assert ledger.spent == step <= last["paid"] < step + 4
    ledger.close()


def test_one_flush_pays_a_block(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = begin(path, block=16)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    for _ in range(32):
        ledger.pay()
    assert len(flushed) == 2
    crash(ledger)


def test_a_clean_end_gives_back_what_was_not_drawn(path: Path) -> None:
    ledger = begin(path, block=16)
    ledger.pay(3)
    ledger.close()
    ledger.close()
    again = resume(path, at_least=3)
    assert again.spent == 3
    again.close()


def test_a_run_that_ended_early_costs_all_of_its_plan(path: Path) -> None:
    """A stop that looked at the model cannot lower the cost: bounds hold for fixed numbers."""
    assert read_event(path.parent) is None
    ledger = begin(path, limit=1000, block=16)
    ledger.pay(16)
    ledger.close()
    assert read_event(path.parent) == Event(1000, TERMS["rate"], TERMS["noise_multiplier"])


def test_after_a_crash_the_whole_block_counts(path: Path) -> None:
    ledger = begin(path, block=16)
    ledger.pay(3)
    crash(ledger)
    again = resume(path)
    assert again.spent == 16
    again.close()


def test_the_budget_ends(path: Path) -> None:
    ledger = begin(path, limit=5, block=4)
    for left in (4, 3, 2, 1, 0):
        ledger.pay()
        assert ledger.left == left
    with pytest.raises(ConfigError, match="budget of 5 steps is spent"):
        ledger.pay()
    ledger.close()
    again = resume(path, limit=5)
    assert again.left == 0
    again.close()


lives = st.lists(
    st.tuples(
        st.lists(st.integers(1, 7), max_size=12), st.sampled_from(["close", "crash", "tear"])
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(lives=lives, block=st.integers(1, 9))
def test_whatever_crashes_it_never_counts_too_little(
    lives: list[tuple[list[int], str]], block: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.jsonl")
        ledger = begin(path, limit=10_000, block=block)
        drawn = wasted = 0
        for payments, end in lives:
            for steps in payments:
                ledger.pay(steps)
                drawn += steps
            before = ledger.spent
            if end == "close":
                ledger.close()
            else:
                crash(ledger)
                wasted += block
            if end == "tear":  # the next payment was being written
                with path.open("ab") as file:
                    file.write(b'{"paid": 9')
                wasted += block
            ledger = resume(path, at_least=before)
            assert ledger.spent >= before
            assert drawn <= ledger.spent <= drawn + wasted
        ledger.close()


def counted(path: Path, at_least: int) -> float:
    """Return what a ledger counts; infinitely much where it is refused, and the run with it."""
    try:
        ledger = resume(path, at_least=at_least)
    except ConfigError as error:
        return math.inf if "cannot be trusted" in str(error) else 0
    ledger.close()
    return ledger.spent


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_an_edited_ledger_is_refused_or_counts_no_less(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.jsonl")
        ledger = begin(path, block=4)
        ledger.pay(9)
        ledger.pay(2)
        ledger.close()
        original = path.read_bytes()
        where = data.draw(st.integers(0, len(original) - 1), label="where")
        byte = data.draw(st.integers(0, 255).filter(lambda b: b != original[where]), label="byte")
        path.write_bytes(original[:where] + bytes([byte]) + original[where + 1 :])
        assert counted(path, at_least=0) >= 11


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_shortened_ledger_never_counts_less_than_its_checkpoint(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.jsonl")
        ledger = begin(path, block=2)
        for _ in range(9):
            ledger.pay()
        ledger.close()
        original = path.read_bytes()
        kept = data.draw(st.integers(0, len(original) - 1), label="bytes kept")
        path.write_bytes(original[:kept])
        assert counted(path, at_least=9) >= 9


def test_lines_removed_or_exchanged_are_seen(path: Path) -> None:
    ledger = begin(path, block=1)
    for _ in range(4):
        ledger.pay()
    ledger.close()
    head, one, two, three, four = path.read_bytes().splitlines(keepends=True)
    for changed in ([head, one, three, four], [head, two, one, three, four], [one, two]):
        path.write_bytes(b"".join(changed))
        with pytest.raises(ConfigError, match=r"cannot be trusted: line \d was edited"):
            resume(path)


def test_a_missing_ledger_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be trusted: it is missing"):
        resume(path)


def test_another_runs_ledger_or_other_terms_are_refused(path: Path) -> None:
    begin(path).close()
    with pytest.raises(ConfigError, match="its run is 'abc', not 'xyz'"):
        resume(path, run="xyz")
    with pytest.raises(ConfigError, match="its terms is"):
        resume(path, terms={**TERMS, "noise_multiplier": 0.5})
    with pytest.raises(ConfigError, match="its limit is 1000, not 2000"):
        resume(path, limit=2000)
    resume(path).close()


def test_a_ledger_is_not_begun_twice(path: Path) -> None:
    begin(path).close()
    with pytest.raises(ConfigError, match="exists: the folder holds another private run"):
        begin(path)


def test_two_processes_cannot_pay_into_one_ledger(path: Path) -> None:
    ledger = begin(path)
    with pytest.raises(ConfigError, match="is in use"):
        resume(path)
    ledger.close()
    resume(path).close()
