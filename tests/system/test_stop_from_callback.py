"""Callbacks that end a run, in worker 0's process and in the caller's."""

import json
import logging
import os
from pathlib import Path

import pytest
import torch

import manyhands as mh
from manyhands.model import zoo

SMALL = {
    "model": "logistic", "data": "blobs", "limit": 400, "batch_size": 40, "epochs": 5, "workers": 2,
    "threads": 1, "kernels": "default", "progress": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Let the workers import this file, whose classes travel by name."""
    here, known = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, known])))


class Stops:
    """Asks to stop at the n-th call of one event, and keeps what it received."""

    def __init__(self, event, n):
        self.rows, self.pids, self.n, self.ended = [], set(), n, 0
        setattr(self, event, self.receive)

    def receive(self, row):
        self.rows.append(row)
        self.pids.add(os.getpid())
        if len(self.rows) == self.n:
            raise mh.StopTraining("enough")

    def on_end(self, record):
        self.ended += 1


def check_usable(result, reason):
    """The run ended like any other: record, model and evaluation agree."""
    record = json.loads((result.output / "run.json").read_text())
    found = record["result"]
    assert (record["status"], found["stopped"], found["stopped_by"]) == (
        "finished", "callback", reason
    )  # fmt: skip
    x, y = (torch.as_tensor(part) for part in blobs_test())
    with torch.inference_mode():
        loss = torch.nn.functional.cross_entropy(result.model(x), y).item()
    assert loss == pytest.approx(found["loss"], rel=1e-5)


def blobs_test():
    from manyhands.data.bundled import blobs

    arrays = blobs()
    return arrays["test_x"], arrays["test_y"]


TOGETHER = [mh.Sync(), mh.Averaging(period=3), mh.Gossip(), mh.Server(masters=1, staleness=0)]
APART = [mh.Hogwild(), mh.Server(masters=1), mh.Gossip(asynchronous=True)]


@pytest.mark.parametrize("place", ["worker", "caller"])
@pytest.mark.parametrize("strategy", [mh.Sync(), mh.Hogwild()], ids=lambda s: s.name)
def test_the_end_of_an_epoch_ends_the_run(strategy, place, tmp_path):
    stops = Stops("on_epoch", 2)
    result = mh.fit(
        **SMALL, strategy=strategy, callbacks=[stops], callbacks_in=place, evaluate_every=5,
        output=str(tmp_path / "run"),
    )  # fmt: skip
    check_usable(result, "Stops.on_epoch: enough")
    assert [row["epoch"] for row in result.history] == [1, 2]
    assert result.history[0]["test_loss"] is None
    if place == "caller":
        assert [row["epoch"] for row in stops.rows] == [1, 2]
        assert (stops.pids, stops.ended) == ({os.getpid()}, 1)
    else:
        assert stops.rows == []
    assert result.record["seconds"]["callbacks"] > 0


@pytest.mark.parametrize("strategy", TOGETHER, ids=lambda s: s.name)
def test_all_workers_stop_after_the_same_step_where_they_step_together(strategy, tmp_path):
    stops = Stops("on_step", 7)
    result = mh.fit(
        **SMALL, strategy=strategy, callbacks=[stops], callbacks_in="caller",
        output=str(tmp_path / "run"),
    )  # fmt: skip
    check_usable(result, "Stops.on_step: enough")
    steps = {w["steps"] for w in result.record["workers"] if w["role"] == "worker"}
    if strategy.supports.together:
        assert steps == {7}
    assert min(steps) >= 7 - 1
    assert [row["step"] for row in stops.rows][:7] == list(range(1, 8))


@pytest.mark.parametrize("strategy", APART, ids=lambda s: s.name)
def test_other_workers_stop_early_where_they_do_not(strategy, tmp_path):
    """Of 2000 epochs nobody does many more than worker 0, which asks after its third step."""
    stops = Stops("on_step", 3)
    result = mh.fit(
        **{**SMALL, "epochs": 2000}, strategy=strategy, callbacks=[stops], callbacks_in="caller",
        output=str(tmp_path / "run"),
    )  # fmt: skip
    check_usable(result, "Stops.on_step: enough")
    assert max(w["steps"] for w in result.record["workers"]) < 2000 * 5 / 2


def test_false_and_a_request_before_the_first_step(tmp_path):
    class Refuses:
        def on_start(self, run):
            self.run = run
            return False

    refuses = Refuses()
    result = mh.fit(**SMALL, callbacks=[refuses], callbacks_in="caller", output=str(tmp_path / "r"))
    check_usable(result, "Refuses.on_start")
    assert result.record["result"]["steps"] == 1
    comm = refuses.run["config"]["comm"]  # the record has the one that was found
    assert refuses.run["config"] == {**result.record["config"], "comm": comm}
    assert refuses.run["output"] == str(result.output)


def test_an_exception_in_the_caller_is_raised_as_it_is(tmp_path):
    class Fails:
        def on_epoch(self, epoch):
            raise ZeroDivisionError(f"in epoch {epoch['epoch']}")

    with pytest.raises(ZeroDivisionError, match="in epoch 1") as caught:
        mh.fit(**SMALL, callbacks=[Fails()], callbacks_in="caller", output=str(tmp_path / "run"))
    assert caught.traceback[-1].name == "on_epoch"
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["error"]) == ("failed", "in epoch 1")


def test_messages_go_to_the_loggers(tmp_path, capfd, caplog):
    """A run that learns nothing says so to `logging`, and by itself prints nothing."""
    with caplog.at_level(logging.WARNING, logger="manyhands"):
        result = mh.fit(**{**SMALL, "epochs": 25}, lr=1e-12, output=str(tmp_path / "run"))
    (record,) = (each for each in caplog.records if "nothing was learned" in each.getMessage())
    assert record.name == "manyhands.training.start_fit"
    assert capfd.readouterr() == ("", "")
    assert result.model is result.model
    assert isinstance(result.model, type(zoo.MODELS["logistic"]((20,), 4)))
