"""The time of callbacks is on no worker's training clock, whichever strategy trains.

Time stands still here but for callbacks: they alone advance a clock that all processes read.
"""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from test_features import data as data
from test_features import names, run
from training import UP_TO_THREE, WORLD

from manyhands.strategies.pipeline import rpc, timeline
from manyhands.strategies.tensor import slicing, tensor
from manyhands.training.process import measurements
from manyhands.worker import clock
from manyhands.worker import worker as workers
from manyhands.worker.checkpoint import save_or_stop

pytestmark = UP_TO_THREE
CALL = 1000.0  # seconds that each call of a callback takes
PATIENCE = 5.0  # real seconds for the other workers to arrive
PHASES = ("compute", "wait", "communicate", "update")
TIMED = (clock, save_or_stop, workers, timeline, rpc, slicing, tensor)


@pytest.fixture
def shared(folder, monkeypatch):
    """Return a row of numbers of all ranks: the time, then how often each waited for callbacks."""
    if WORLD.rank == 0:
        np.zeros(1 + WORLD.size).tofile(f"{folder}/time")
    WORLD.Barrier()
    row = np.memmap(f"{folder}/time", np.float64, mode="r+")
    standing = SimpleNamespace(monotonic=lambda: 1.0 + float(row[0]), sleep=time.sleep)
    for module in TIMED:
        monkeypatch.setattr(module, "time", standing)
    _count_waiting(monkeypatch, row)
    return row


def _count_waiting(monkeypatch, row):
    plain = workers.Worker.end_event

    def counted(worker, event):
        inner = worker.comm.maximum

        def maximum(values):  # by now the worker has read the time
            row[1 + WORLD.rank] += 1
            return inner(values)

        worker.comm.maximum = maximum
        try:
            plain(worker, event)
        finally:
            del worker.comm.maximum

    monkeypatch.setattr(workers.Worker, "end_event", counted)


class Slow:
    """A callback that takes long, and goes on when all other workers wait for it."""

    def __init__(self, event, shared):
        self.calls, self.shared = 0, shared
        self.others = 0  # that should wait
        setattr(self, event, self._called)

    def _called(self, what):
        self.calls += 1
        until = time.monotonic() + PATIENCE
        waiting = self.shared[2 : 2 + self.others]
        while (waiting < self.calls).any() and time.monotonic() < until:
            time.sleep(0.001)
        self.shared[0] += CALL


@pytest.mark.parametrize("event", ["on_step", "on_epoch"])
@pytest.mark.parametrize("name", names())
def test_callbacks_take_no_training_time_of_any_worker(data, tmp_path, shared, name, event):
    if name == "hogwild" and WORLD.rank:
        return  # each process would train a group of its own
    slow = Slow(event, shared)
    together = name not in ("server", "hogwild")
    if together and name != "sequential":
        slow.others = min(2 if name in ("pipeline", "tensor") else WORLD.size, WORLD.size) - 1
    given = {"max_steps": 6} if event == "on_step" else {"max_steps": None, "epochs": 2}
    worker = run(name, data, tmp_path, batch_size=400, callbacks=[slow], **given)
    if worker is None or (worker.rank and not together):  # the others train on meanwhile
        return
    times = worker.clock
    if worker.rank == 0:
        assert slow.calls == (6 if event == "on_step" else 2)
    assert (times.seconds(), times.evaluation) == (0, 0)
    assert times.callbacks == CALL * (6 if event == "on_step" else 2)
    steps = measurements.step_rows(worker) if together else []
    assert {row[phase] for row in steps for phase in PHASES} <= {0.0}
