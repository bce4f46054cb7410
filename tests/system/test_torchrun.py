"""Under torchrun, where there is no MPI at all: the same run, the same refusals, the same ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks
from running import PATIENCE, eventually, ran

from manyhands.launch import simulated_cluster
from manyhands.testing import Faults

ROOT = Path(__file__).parents[2]
SMALL = ["--data", "blobs", "--model", "mlp", "--epochs", "1", "--kernels", "default"]


@pytest.fixture
def environment(tmp_path):
    """An environment in which nothing can import mpi4py, nor find an MPI."""
    blocked = tmp_path / "blocked/mpi4py"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('mpi4py is blocked here')\n")
    path = os.pathsep.join([str(blocked.parent), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": path, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def torchrun(*words, processes=2):
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return [*line, "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
            *map(str, words)]  # fmt: skip


def run(environment, *words, processes=2):
    return ran(torchrun(*words, processes=processes), env=environment)


def test_a_run_without_any_mpi(environment, tmp_path):
    output = tmp_path / "run"
    given = [*SMALL, "--strategy", "sync", "--output", output]
    done = run(environment, "-m", "manyhands", "train", *given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    record = json.loads((output / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["config"]["comm"] == "torch:gloo"
    assert record["config"]["workers"] == record["processes"] == 2
    assert record["machine"]["mpi"] is None
    for worker in record["workers"]:
        calls = worker["operations"]["allreduce torch:gloo"]["calls"]
        assert calls == record["result"]["steps"] > 0


def test_your_own_strategy_from_its_file(environment, tmp_path):
    (tmp_path / "mine.py").write_text(blocks("how-to/own-strategy.md", "python")[0])
    given = [*SMALL, "--strategy", f"{tmp_path}/mine.py:Nudge", "--beta", "0.3", "--max-steps", 10]
    done = run(environment, "-m", "manyhands", "train", *given, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert (record["config"]["strategy"], record["config"]["beta"]) == ("Nudge", 0.3)
    assert record["config"]["comm"] == "torch:gloo"
    assert record["result"]["steps"] == 10


def test_all_reduces_that_only_send_messages_are_timed_over_gloo(environment, tmp_path):
    line = ["-m", "manyhands", "allreduce", "--sizes", "4B,1KB", "--output", tmp_path / "out"]
    done = run(environment, *line, processes=3)
    assert done.returncode == 0, done.stderr
    records = json.loads((tmp_path / "out/allreduce.json").read_text())
    names = {"naive", "allgather", "ring", "recursive-doubling", "rabenseifner", "gloo"}
    assert {r["algorithm"] for r in records} == names
    assert all(r["correct"] and r["workers"] == 3 for r in records)
    sent = {r["algorithm"]: r["bytes_sent_each"] for r in records if r["bytes"] == 1024}
    assert sent["naive"] == 2 * 1024
    refused = run(environment, *line, "--algorithms", "shared-memory", processes=3)
    assert refused.returncode == 1  # torchrun's own
    assert "shared-memory, which needs MPI" in refused.stderr


SCRIPT = """
import json, os, sys, tempfile
from pathlib import Path
import torch
import manyhands as mh
from manyhands.errors import ConfigError

torch.distributed.init_process_group("gloo")  # the user's own, which stays
rank, output = int(os.environ["RANK"]), Path(sys.argv[1])
found = {"refused": {}, "accuracy": {}}
for strategy in ("sync", "averaging", "gossip"):
    result = mh.fit(
        lambda: torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Linear(16, 4)),
        "blobs", strategy=strategy, epochs=1, kernels="default", output=str(output / strategy),
    )
    assert result.record["config"]["workers"] == 2
    found["accuracy"][strategy] = result.accuracy
for name, given in {
    "server": {"strategy": "server"},
    "hogwild": {"strategy": "hogwild"},
    "pipeline": {"strategy": "pipeline"},
    "mpi": {"comm": "mpi"},
    "mpi4py": {"comm": "torch:mpi4py"},
    "ring": {"allreduce": "ring"},
    "workers": {"workers": 3},
}.items():
    try:
        mh.fit("mlp", "blobs", epochs=1, output=str(output / "refused"), **given)
    except ConfigError as error:
        found["refused"][name] = str(error)
found["left"] = [p for p in os.listdir(tempfile.gettempdir()) if p.startswith("manyhands-")]
(output / f"found-{rank}.json").write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def test_fit_in_a_script_joins_with_every_strategy_that_can(environment, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "tmp").mkdir()
    done = run({**environment, "TMPDIR": str(tmp_path / "tmp")}, script, tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1)]
    assert found[0]["accuracy"] == found[1]["accuracy"]
    assert min(found[0]["accuracy"].values()) > 0.5
    refused = found[0]["refused"]
    assert refused == found[1]["refused"]
    assert "torchrun, but server does not run over torch.distributed" in refused["server"]
    assert "torchrun, but pipeline does not run over torch.distributed" in refused["pipeline"]
    assert "hogwild shares the memory of one host" in refused["hogwild"]
    assert "started by torchrun" in refused["mpi"]
    assert "started by torchrun" in refused["mpi4py"]
    assert "its own all-reduce" in refused["ring"]
    assert "this group has 2" in refused["workers"]
    assert not (tmp_path / "refused").exists()
    assert found[0]["left"] == found[1]["left"] == []


TWO_HOSTS = """
import json, os, shlex, subprocess, sys
about = json.loads(os.environ["MANYHANDS_LAB"])
os.environ["GLOO_SOCKET_IFNAME"] = about["interface"]
def line(host):
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", host]
    words += ["--nproc-per-node", "2", "--master-addr", about["hosts"][0], "--master-port", "29511"]
    return words + ["-m", "manyhands", "train", *sys.argv[1:]]
second = subprocess.Popen([about["launcher"], about["hosts"][1], shlex.join(line("1"))])
first = subprocess.run(line("0"), check=False)
raise SystemExit(second.wait(60) or first.returncode)
"""


@pytest.mark.skipif(
    simulated_cluster.obstacle() is not None,
    reason=f"no simulated hosts: {simulated_cluster.obstacle()}",
)
def test_two_hosts_each_with_a_copy_of_the_data(environment, tmp_path):
    (tmp_path / "both.py").write_text(TWO_HOSTS)
    line = [sys.executable, "-m", "manyhands", "lab", "--hosts", "2", "--", sys.executable]
    line += [str(tmp_path / "both.py"), *SMALL, "--output", str(tmp_path / "run")]
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert [worker["host"] for worker in record["workers"]] == ["host1"] * 2 + ["host2"] * 2
    assert record["config"]["comm"] == "torch:gloo"


RAISING = """
import os
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(20, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if os.environ["RANK"] == "1" and self.calls == 5:
            raise ValueError("a mistake of mine")
        return self.linear(x)
"""


def test_an_exception_on_one_rank_ends_the_run_and_is_told_once(environment, tmp_path):
    (tmp_path / "mine.py").write_text(RAISING)
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
    given = ["--data", "blobs", "--model", "mine:Model", "--kernels", "default"]
    done = run(environment, "-m", "manyhands", "train", *given, "--output", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.count("ValueError: a mistake of mine") == 1, done.stderr
    assert "[rank 1] Traceback" in done.stderr
    assert "[rank 0]" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("fault", "timeout", "told"),
    [("kill", 60, "another process was lost: it has ended"), ("stop", 8, "missing: rank 1")],
)
def test_who_dies_or_hangs_is_noticed(environment, tmp_path, fault, timeout, told):
    with getattr(Faults(), fault)(rank=1, step=5, phase="exchange"):
        faults = {name: value for name, value in os.environ.items() if name not in environment}
        given = [*SMALL, "--timeout", timeout, "--output", tmp_path / "run"]
        done = run({**environment, **faults}, "-m", "manyhands", "train", *given)
    assert done.returncode == 1
    assert done.stderr.count(told) == 1, done.stderr


def test_a_signal_stops_with_a_checkpoint_from_which_the_run_goes_on(environment, tmp_path):
    output = tmp_path / "run"
    given = ["--data", "blobs", "--model", "mlp", "--kernels", "default", "--epochs", "500"]
    given += ["--checkpoint-every", "50steps", "--output", output]
    group = subprocess.Popen(
        torchrun("-m", "manyhands", "train", *given),
        env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert eventually(lambda: list(output.glob("checkpoints/step-*")))
        group.send_signal(signal.SIGTERM)
        _, said = group.communicate(timeout=PATIENCE)
    finally:
        group.kill()
    assert said.count("by SIGTERM; a checkpoint was written") == 1, said
    step = max(int(path.name.split("-")[1]) for path in output.glob("checkpoints/step-*"))
    goes_on = ["--resume", output, "--max-steps", step + 20]
    done = run(environment, "-m", "manyhands", "train", *goes_on)
    assert done.returncode == 0, done.stderr
    record = json.loads((output / "run.json").read_text())
    assert record["result"]["steps"] == step + 20
    assert record["story"][0]["resumed_from"] == step
