"""Runs that outlive their workers: `--on-failure continue`, with real deaths."""

import json

import numpy as np
import pytest
from running import manyhands
from safetensors.numpy import load_file
from torch import nn

import manyhands as mh
from manyhands.errors import ConfigError
from manyhands.testing import Faults

OPTIONS = {"model": "mlp", "data": "blobs", "epochs": 2, "batch_size": 50, "kernels": "default"}
OPTIONS |= {"dtype": "float64", "progress": False}
SURVIVE = {"workers": 3, "on_failure": "continue", "timeout": 60.0}


def weights(output):
    return np.concatenate([w.ravel() for _, w in sorted(load_file(output).items())])


def fit(output, **given):
    return mh.fit(**{**OPTIONS, **given, "output": str(output)})


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights and the record of the run that has nobody to lose."""
    output = tmp_path_factory.mktemp("sequential") / "run"
    record = fit(output, strategy="sequential").record
    return weights(output / "model.safetensors"), record


@pytest.mark.parametrize(
    ("rank", "step", "phase"),
    [(1, 45, "gradient"), (0, 45, "exchange"), (2, 40, "evaluate"), (1, 0, "record")],
)
def test_sync_ends_where_sequential_does_whoever_dies(tmp_path, alone, rank, step, phase):
    with Faults().kill(rank=rank, step=step, phase=phase):
        record = fit(tmp_path / "run", **SURVIVE).record
    expected, undisturbed = alone
    found = weights(tmp_path / "run/model.safetensors")
    assert np.abs(found - expected).max() < 1e-10
    (event,) = record["story"]
    assert event["lost"] == [rank]
    assert event["workers"] == 2
    assert [w["rank"] for w in record["workers"]] == [r for r in range(3) if r != rank]
    for key in ("steps", "examples", "accuracy"):
        assert record["result"][key] == undisturbed["result"][key]
    assert record["result"]["loss"] == pytest.approx(undisturbed["result"]["loss"], abs=1e-9)


def test_sync_outlives_one_after_the_other_on_a_fixed_partition(tmp_path, alone):
    faults = Faults().kill(rank=0, step=20, phase="update").kill(rank=3, step=20, phase="regroup")
    given = {**SURVIVE, "workers": 4, "partition": "stratified", "optimizer": "adam", "lr": 0.01}
    whole = fit(tmp_path / "whole", **{**given, "on_failure": "stop"})
    with faults.kill(rank=1, step=60, phase="gradient"):
        record = fit(tmp_path / "struck", **given, checkpoint_every="10steps").record
    ends = [weights(tmp_path / name / "model.safetensors") for name in ("whole", "struck")]
    assert np.abs(ends[0] - ends[1]).max() < 1e-9
    # The second dies while the others regroup: that may count as one loss of two, or as two.
    assert [rank for event in record["story"] for rank in event["lost"]] == [0, 3, 1]
    assert [event["workers"] for event in record["story"]][-1] == 1
    assert record["result"]["examples"] == whole.record["result"]["examples"]
    # Only that run knew who had taken over whose shard: one that goes on would deal them anew.
    with pytest.raises(ConfigError, match="dealt over 4 workers"):
        mh.fit(resume=str(tmp_path / "struck"), epochs=3, progress=False)


@pytest.fixture(scope="module")
def normed(tmp_path_factory):
    """A model with BatchNorm, and the weights and running statistics with which one worker ends."""
    model = nn.Sequential(
        nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 8), nn.BatchNorm1d(8),
        nn.Linear(8, 4),
    )  # fmt: skip
    output = tmp_path_factory.mktemp("normed") / "run"
    fit(output, model=model, strategy="sequential")
    return model, weights(output / "model.safetensors")


@pytest.mark.parametrize(
    ("rank", "step", "phase"), [(1, 45, "gradient"), (0, 45, "exchange"), (2, 44, "update")]
)
def test_synchronised_batchnorm_outlives_a_worker_that_dies_in_its_exchange(
    tmp_path, normed, rank, step, phase
):
    """A step's first exchange is that of statistics; what the survivors had of them is undone."""
    with Faults().kill(rank=rank, step=step, phase=phase):
        record = fit(tmp_path / "run", **SURVIVE, model=normed[0], sync_batchnorm=True).record
    (event,) = record["story"]
    assert (event["lost"], event["workers"]) == ([rank], 2)
    found = weights(tmp_path / "run/model.safetensors")
    far = np.abs(found - normed[1]).max()
    assert far < 1e-9
    assert record["result"]["steps"] == 80


# Dies while a fragment is under way.
DILOCO = {"outer_optimizer": "sgd", "outer_lr": 0.9, "outer_momentum": 0.3}
DILOCO |= {"outer_fragments": 2, "outer_delay": 4, "outer_precision": "fp16"}


@pytest.mark.parametrize(
    ("given", "next_meeting"),
    [
        ({"strategy": "averaging", "period": 3}, 48),
        ({"strategy": "averaging", "period": 6, **DILOCO}, 49),  # sent after 45, due 4 steps later
        ({"strategy": "averaging", "lr": 0.02}, 80),  # the next question to all, by the clock
        ({"strategy": "gossip", "overlap": True}, 46),
    ],
    ids=str,
)
def test_who_has_a_model_of_its_own_goes_on_with_the_average_of_the_others(
    tmp_path, alone, given, next_meeting
):
    with Faults().kill(rank=1, step=45, phase="gradient"):
        record = fit(tmp_path / "run", **SURVIVE, **given).record
    (event,) = record["story"]
    assert event["lost"] == [1]
    assert 45 <= event["step"] <= next_meeting  # where the dead one is missed
    assert record["result"]["steps"] == 80
    assert sum(w["examples"] for w in record["partition"]["workers"]) == 2000
    assert abs(record["result"]["loss"] - alone[1]["result"]["loss"]) < 0.05  # 1.4 at first


GROW = {**SURVIVE, "checkpoint_every": "10steps", "min_workers": 2}


@pytest.mark.parametrize("partition", ["balanced", "stratified"])
def test_sync_has_all_its_workers_again_from_the_next_checkpoint(tmp_path, alone, partition):
    """The first of the group dies; after all are back, another, who is not replaced."""
    faults = Faults().kill(rank=0, step=13, phase="gradient")
    with faults.kill(rank=2, step=75, phase="exchange"):
        record = fit(tmp_path / "run", **GROW, partition=partition, max_restarts=1).record
    first, again, last = record["story"]
    assert (first["lost"], first["workers"]) == ([0], 2)
    assert (again["restarted_from"], again["workers"]) == (20, 3)
    assert (last["lost"], last["workers"]) == ([2], 2)
    assert [w["rank"] for w in record["workers"]] == [0, 1]
    for key in ("steps", "examples"):
        assert record["result"][key] == alone[1]["result"][key]
    steps = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").read_text().splitlines()]
    assert {row["step"] for row in steps} == set(range(21, 81))  # a smaller group's are left behind
    expected = alone[0]
    if partition != "balanced":
        fit(tmp_path / "whole", partition=partition, workers=3)
        expected = weights(tmp_path / "whole/model.safetensors")
    assert np.abs(weights(tmp_path / "run/model.safetensors") - expected).max() < 1e-10


@pytest.mark.parametrize(("rank", "phase"), [(1, "gradient"), (0, "exchange"), (2, "update")])
@pytest.mark.parametrize("compress", ["topk:0.1", "powersgd:2"])
def test_a_compressed_sum_outlives_a_worker(tmp_path, alone, compress, rank, phase):
    """The replicas stay bit-identical, which each epoch's check holds to."""
    with Faults().kill(rank=rank, step=45, phase=phase):
        record = fit(tmp_path / "run", **SURVIVE, compress=compress).record
    (event,) = record["story"]
    assert (event["lost"], event["workers"]) == ([rank], 2)
    for key in ("steps", "examples"):
        assert record["result"][key] == alone[1]["result"][key]
    assert abs(record["result"]["loss"] - alone[1]["result"]["loss"]) < 0.05  # 1.4 at first


@pytest.mark.parametrize("strategy", ["averaging", "gossip"])
def test_who_has_a_model_of_its_own_starts_again_from_the_average(tmp_path, alone, strategy):
    with Faults().kill(rank=1, step=13, phase="gradient"):
        record = fit(tmp_path / "run", **GROW, strategy=strategy, lr=0.02).record
    lost, again = record["story"]
    assert lost["lost"] == [1]
    assert again["restarted_from"] in (20, 30)  # who exchanges nothing may be at 20 when it hears
    assert [w["rank"] for w in record["workers"]] == [0, 1, 2]
    assert record["result"]["steps"] == 80
    assert record["result"]["examples"] == 4000
    assert abs(record["result"]["loss"] - alone[1]["result"]["loss"]) < 0.05  # 1.4 at first


def test_with_too_few_left_nothing_is_lost_and_all_can_go_on(tmp_path, alone):
    output = tmp_path / "run"
    faults = Faults().kill(rank=1, step=25, phase="gradient")
    with faults, pytest.raises(mh.WorkerError, match="rank 1 died and 2 of 3") as caught:
        fit(output, **{**GROW, "min_workers": 3})
    assert caught.value.rank == 1
    record = mh.fit(resume=str(output), workers=3, progress=False).record
    assert record["story"][0]["resumed_from"] >= 25
    assert np.abs(weights(output / "model.safetensors") - alone[0]).max() < 1e-10
    assert record["result"]["examples"] == 4000


@pytest.mark.parametrize("rank", [0, 1])
def test_a_server_goes_on_and_every_batch_is_pushed_once(tmp_path, rank):
    with Faults().kill(rank=rank, step=20, phase="exchange"):
        record = fit(tmp_path / "run", **SURVIVE, strategy="server", epochs=3).record
    (event,) = record["story"]
    assert event["lost"] == [rank]
    assert record["result"]["examples"] == 3 * 2000
    assert sum(record["strategy"]["staleness"]["histogram"].values()) == 3 * 42
    assert [w["rank"] for w in record["workers"]] == [r for r in range(4) if r != rank]
    assert record["result"]["accuracy"] > 0.9
    if rank:  # else the copies that it kept of the first epochs are gone with it
        assert all(row["test_accuracy"] is not None for row in record["epochs"])


def test_the_last_master_cannot_be_outlived(tmp_path):
    faults = Faults().kill(rank=3, step=30, phase="serve")
    with faults, pytest.raises(mh.WorkerError, match="1 of 1 masters died"):
        fit(tmp_path / "run", **SURVIVE, strategy="server")


def test_the_last_worker_cannot_be_outlived(tmp_path):
    faults = Faults().kill(rank=0, step=20, phase="gradient")
    with faults, pytest.raises(mh.WorkerError, match="all workers died"):
        fit(tmp_path / "run", **{**SURVIVE, "workers": 1}, strategy="server")


def test_masters_take_over_each_other_s_layers_and_every_batch_is_pushed_once(tmp_path):
    """The second of three dies, then the first, then a worker: one master owns all in the end."""
    faults = Faults().kill(rank=3, step=20, phase="serve").kill(rank=2, step=60, phase="serve")
    faults.kill(rank=0, step=45, phase="exchange")
    given = {**SURVIVE, "workers": 2, "strategy": mh.Server(masters=3), "optimizer": "adam"}
    given |= {"lr": 0.01, "epochs": 3, "checkpoint_every": "10steps"}
    with faults:
        record = fit(tmp_path / "run", **given).record
    assert sorted(rank for event in record["story"] for rank in event["lost"]) == [0, 2, 3]
    heirs = [heir for event in record["story"] for heir in event.get("taken_over", [])]
    assert [heir["layers"] for heir in heirs] == [["fc2"], ["fc1", "fc2"]]
    assert [heir["by"] for heir in heirs] == [2, 4]
    assert all(heir["version"] > 0 for heir in heirs)
    (master,) = record["strategy"]["masters"]
    assert master["layers"] == ["fc1", "fc2", "fc3"]
    assert record["result"]["examples"] == 3 * 2000
    assert record["result"]["accuracy"] > 0.9
    # Its optimizer has parts that a new run would not have, and the dead worker's batches.
    with pytest.raises(ConfigError, match=r"dealt over 2 workers|master had died"):
        mh.fit(resume=str(tmp_path / "run"), epochs=4, progress=False)


def killing(rank, step):
    """Return a callback by which worker 0 kills another process of its group after a step."""

    class Strike:
        def on_step(self, about):
            if about["step"] != step:
                return
            import os
            import time
            from pathlib import Path

            ours = f"PMIX_NAMESPACE={os.environ['PMIX_NAMESPACE']}".encode()
            for place in Path("/proc").glob("[0-9]*"):
                try:
                    told = (place / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if ours in told and f"PMIX_RANK={rank}".encode() in told:
                    os.kill(int(place.name), 9)
            time.sleep(1.0)  # that was its stand-in: the process itself dies a moment later

    return Strike()


def skipping(step, parts):
    """Return what makes an SGD that leaves out one step of some parameters, by their numbers."""

    def make(params):
        import torch

        class Skipping(torch.optim.SGD):
            done = 0

            def step(self, closure=None):
                before = [params[i].detach().clone() for i in parts]
                super().step(closure)
                self.done += 1
                for i, value in zip(parts, before, strict=True):
                    if self.done == step:
                        params[i].data.copy_(value)

        return Skipping(params, lr=0.1)

    return make


@pytest.mark.parametrize("rank", [1, 2])
def test_of_a_dead_master_s_layers_at_most_the_push_in_flight_is_lost(tmp_path, rank):
    """One worker, so no more than one push: all else is to be as in a run of one process.

    The master is dead before push 31 is sent, so that its layers cannot have it twice: the copy
    is of update 30, and they lack the push if the other master has used it, or nothing.
    """
    given = {"partition": "balanced", "workers": 1, "lr": 0.1, "momentum": 0.0}
    server = {**SURVIVE, **given, "strategy": mh.Server(masters=2)}
    record = fit(tmp_path / "run", **server, callbacks=[killing(rank, 30)]).record
    (event,) = record["story"]
    assert event["lost"] == [rank]
    (heir,) = event["taken_over"]
    assert heir["by"] == 3 - rank
    assert heir["version"] == 30
    names = [f"{layer}.{part}" for layer in ("fc1", "fc2", "fc3") for part in ("weight", "bias")]
    lost = [i for i, name in enumerate(names) if name.split(".")[0] in heir["layers"]]
    assert 0 < len(lost) < len(names)
    ends = []
    for i, parts in enumerate(([], lost)):
        output = tmp_path / str(i)
        fit(output, strategy="sequential", optimizer=skipping(31, parts), partition="balanced")
        ends.append(weights(output / "model.safetensors"))
    found = weights(tmp_path / "run/model.safetensors")
    distances = [np.abs(found - end).max() for end in ends]
    assert min(distances) < 1e-10
    assert np.abs(ends[0] - ends[1]).max() > 1e-6


def test_a_stopped_worker_counts_as_dead_after_the_timeout(tmp_path, alone):
    output = tmp_path / "run"
    with Faults().stop(rank=1, step=45, phase="gradient"):
        record = fit(output, **{**SURVIVE, "timeout": 10.0}).record
    assert np.abs(weights(output / "model.safetensors") - alone[0]).max() < 1e-10
    (event,) = record["story"]
    assert event["lost"] == [1]
    assert event["noticed"] > 9
    assert "the others go on without this one" in (output / "rank-1.log").read_text()


def test_who_is_left_writes_what_the_first_wrote_and_says_who_died(tmp_path):
    output = tmp_path / "run"
    line = ["--data", "blobs", "--model", "mlp"]
    line += ["--kernels", "default", "--workers", "2", "--on-failure", "continue"]
    line += ["--output", str(output), "--epochs", "2", "--validation", "0.2", "--json"]
    with Faults().kill(rank=0, step=5, phase="update"):
        done = manyhands("train", *line)
    assert done.returncode == 0, done.stderr
    assert "rank 0 died; 1 workers go on from step" in done.stderr
    assert (output / "best.safetensors").exists()
    assert json.loads(done.stdout)["steps"]


def test_a_death_before_training_ends_the_run_and_is_named(tmp_path):
    with Faults().kill(rank=1, step=0, phase="load"), pytest.raises(mh.WorkerError, match="rank 1"):
        fit(tmp_path / "run", **SURVIVE)


def test_an_error_of_ones_own_still_ends_all(tmp_path):
    with pytest.raises(mh.DivergedError, match="the loss is"):
        fit(tmp_path / "run", **SURVIVE, lr=1e38)
