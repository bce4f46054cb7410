"""What the record of a run that failed says."""

import json

import pytest

from manyhands.config.options import configure
from manyhands.privacy.ledger import Ledger
from manyhands.privacy.steps_rate_noise import REDACTED
from manyhands.training.failure_record import write_failure
from manyhands.worker.clock import Clock

TERMS = {"steps": 40, "rate": 0.01, "noise_multiplier": 1.1, "clip": 0.1, "delta": 1e-5}


@pytest.mark.parametrize("private", [False, True])
def test_messages_may_tell_of_private_data_and_stay_in_the_log(tmp_path, private):
    given = {"private": True, "epsilon": 3.0} if private else {}
    story = [{"failed": "target 9 is out of bounds", "step": 3}]
    error = IndexError("target 9 is out of bounds")
    write_failure(tmp_path, configure(given), "name", "command", error, story)
    text = (tmp_path / "run.json").read_text()
    assert ("target 9" in text) != private
    assert (json.loads(text)["error"] == REDACTED) == private


def test_a_failed_private_run_has_spent_on_the_data_by_its_own_name(tmp_path):
    Ledger.begin(
        tmp_path / "ledger-0.jsonl", run="r", limit=40, terms=TERMS, data="flights"
    ).close()
    config = configure({"private": True, "epsilon": 3.0, "data": "some/flights.npz"})
    write_failure(tmp_path, config, "name", "command", RuntimeError("killed"))
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["data"] == {"name": "flights"}
    assert record["privacy"]["steps"] == 40


def test_an_exchange_without_a_step_is_counted_nowhere():
    clock = Clock()
    clock.exchange(1.0, 2.0)
    assert clock.entered == clock.exchanged == []
