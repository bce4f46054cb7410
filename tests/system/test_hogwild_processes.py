"""Hogwild with real processes: what it leaves, what it refuses, how it ends."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from running import MANYHANDS, PATIENCE, eventually, processes, ran
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/faults"))
from memory import Mapped

import manyhands as mh
from manyhands.errors import ConfigError, DivergedError, WorkerError
from manyhands.launch import mpi as mpis

SMALL = {"data": "blobs", "model": "mlp", "epochs": 2, "kernels": "default", "batch_size": 20}


def crew_alive():
    """Return the processes of this test's crews: their job lies in its temporary folder."""
    mark = f"\0TMPDIR={tempfile.tempdir}".encode()
    ours = processes(lambda told: mark in told, "environ")
    return [
        pid
        for pid in processes(lambda line: b"manyhands.training.process.shared_memory_main" in line)
        if pid in ours
    ]


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("jobs")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with Mapped(folder, ("torch_", "sem.mp")) as memory:  # MPI's own is not ours here
        yield
    assert eventually(lambda: not crew_alive(), 60)
    assert list(folder.glob("manyhands-*")) == []
    assert memory.left(60) == set()


def test_workers_share_one_model_and_count_staleness(tmp_path):
    result = mh.fit(strategy="hogwild", workers=3, output=str(tmp_path / "run"), **SMALL)
    record = result.record
    assert result.accuracy > 0.9
    assert [w["role"] for w in record["workers"]] == ["worker"] * 3
    assert len({w["pid"] for w in record["workers"]}) == 3
    assert record["result"]["examples"] == 4000
    assert record["partition"]["seen"] == 2000
    assert record["partition"]["twice"] == 0
    pushes = sum(record["strategy"]["staleness"]["histogram"].values())
    assert pushes == sum(w["steps"] for w in record["workers"])
    assert record["machine"]["mpi"] is None
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"run.json", "steps.jsonl", "rank-0.log", "rank-2.log", "model.safetensors"}
    assert {json.loads(line)["rank"] for line in (tmp_path / "run/steps.jsonl").open()} == {0, 1, 2}


def test_runs_in_one_process_do_not_hang(tmp_path):
    for number, options in enumerate(({}, {"lock": True}, {"shared_state": True})):
        strategy = mh.Hogwild(**options)
        result = mh.fit(strategy=strategy, workers=2, output=str(tmp_path / str(number)), **SMALL)
        assert result.accuracy > 0.9


def test_the_target_stops_all_workers(tmp_path):
    given = {**SMALL, "epochs": 100, "target_accuracy": 0.8}
    result = mh.fit(strategy="hogwild", workers=2, output=str(tmp_path / "run"), **given)
    assert result.record["result"]["stopped"] == "target_accuracy"
    assert result.accuracy >= 0.8
    assert all(w["steps"] < 5000 for w in result.record["workers"])


def test_nobody_trains_while_worker_0_evaluates(tmp_path):
    def slow(output, target):
        time.sleep(1)
        return (output.argmax(1) == target).float().mean()

    given = {**SMALL, "epochs": 100, "target_accuracy": 0.8, "metric": ["accuracy", slow]}
    result = mh.fit(strategy="hogwild", workers=3, output=str(tmp_path / "run"), **given)
    record = result.record
    assert record["result"]["stopped"] == "target_accuracy"
    assert record["result"]["steps"] == record["epochs"][-1]["steps"]
    assert record["result"]["examples"] == record["epochs"][-1]["examples"]
    # Beyond what is behind the copy there are the steps that others were in, and those of a time
    # slice if worker 0 lost its core before it asked them to wait. In a second they make thousands.
    beyond = sum(w["steps"] for w in record["workers"]) - 3 * record["result"]["steps"]
    assert 0 <= beyond < record["result"]["steps"]


def test_a_diverging_run_ends_all(tmp_path):
    with pytest.raises(DivergedError, match="smaller learning rate") as caught:
        mh.fit(strategy="hogwild", workers=2, lr=1e30, output=str(tmp_path / "run"), **SMALL)
    assert caught.value.rank in (0, 1)
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "failed"


def test_a_failing_worker_ends_all_with_its_traceback(tmp_path):
    def loss(output, target):
        raise ZeroDivisionError("in my loss")

    with pytest.raises(WorkerError, match="ZeroDivisionError: in my loss") as caught:
        mh.fit(strategy="hogwild", workers=2, loss=loss, output=str(tmp_path / "run"), **SMALL)
    assert "in my loss" in caught.value.traceback
    assert caught.value.exit_code == 1


def test_workers_that_build_different_models_are_refused(tmp_path):
    def model():
        second = multiprocessing.current_process().name.endswith("-2")
        return nn.Linear(20, 4, bias=not second)

    told = r"rank 0 has bias of shape \(4,\), and rank 1 does not"
    given = {**SMALL, "model": model, "strategy": "hogwild", "workers": 2}
    with pytest.raises(ConfigError, match=f"the models of the workers differ: {told}"):
        mh.fit(output=str(tmp_path / "run"), **given)


def test_a_killed_worker_ends_all(tmp_path):
    def loss(output, target):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerError, match="died without a word"):
        mh.fit(strategy="hogwild", workers=2, loss=loss, output=str(tmp_path / "run"), **SMALL)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_launcher(tmp_path, signum):
    line = [
        *MANYHANDS, "train", "--strategy", "hogwild", "--data", "blobs", "--model", "mlp",
        "--epochs", "100000", "--workers", "2", "--output", tmp_path / "run",
    ]  # fmt: skip
    process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: (tmp_path / "run/rank-1.log").exists())
        process.send_signal(signum)
        process.wait(PATIENCE)
        assert eventually(lambda: not crew_alive(), 60)
    finally:
        process.kill()
        process.wait()
    for folder in Path(tempfile.tempdir).glob("manyhands-*"):  # nobody was left to clear it away
        assert signum == signal.SIGKILL
        shutil.rmtree(folder)


def test_a_group_of_others_is_refused(tmp_path):
    given = ["--strategy", "hogwild", "--data", "blobs", "--output", str(tmp_path / "run")]
    mpi = mpis.find_mpi("mpich")
    line, environment = mpis.mpiexec_command(mpi, 2, ["-m", "manyhands", "train", *given])
    done = ran(line, env=environment)
    assert done.returncode != 0
    assert done.stderr.count("run it without mpiexec, srun or torchrun") == 1
    assert not (tmp_path / "run").exists()


def test_one_process_of_mpiexec_starts_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    given = {**SMALL, "epochs": 1}
    result = mh.fit(strategy="hogwild", workers=2, output=str(tmp_path / "run"), **given)
    assert len(result.record["workers"]) == 2
