"""A run of one process may train in the caller's; a planned run is never started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from manyhands.callbacks import StopTraining
from manyhands.training import start_fit

SMALL = {"model": "logistic", "data": "blobs", "workers": 1, "epochs": 1, "progress": False}


class Notes:
    """Notes the process that calls it, and may stop the run."""

    def __init__(self, stops: bool = False) -> None:
        self.processes: list[int] = []
        self.stops = stops

    def on_epoch(self, epoch: object) -> None:
        self.processes.append(os.getpid())
        if self.stops:
            raise StopTraining("enough")


@pytest.mark.parametrize("strategy", ["sync", "averaging", "sequential", "gossip"])
def test_one_worker_trains_in_this_process(strategy: str, tmp_path: Path) -> None:
    notes = Notes()
    result = start_fit.fit(
        **SMALL, strategy=strategy, here=True, callbacks=[notes], output=str(tmp_path / "run")
    )
    assert notes.processes == [os.getpid()]
    assert result.record["status"] == "finished"
    assert result.accuracy is not None


def test_a_callback_stops_a_run_in_this_process(tmp_path: Path) -> None:
    notes = Notes(stops=True)
    result = start_fit.fit(
        **SMALL | {"epochs": 9}, here=True, callbacks=[notes], output=str(tmp_path / "run")
    )
    assert len(notes.processes) == 1
    assert result.record["result"]["stopped"] == "callback"


def test_a_run_is_planned_with_its_objects() -> None:
    run = start_fit.planned_run("logistic", "blobs", workers=2, callbacks=[Notes()])
    assert run.config.workers == 2
    assert not run.callbacks_in_caller
