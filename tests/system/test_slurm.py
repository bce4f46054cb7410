"""Slurm, for real: one node, started for these tests and stopped after them."""

import getpass
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks
from running import MANYHANDS, PATIENCE, eventually, ran, record

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])
MISSING = [name for name in NEEDED if not shutil.which(name, path=PATH)]
SMALL = ["--data", "blobs", "--model", "mlp", "--epochs", "1", "--kernels", "default"]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
FirstJobId={first}
SlurmdPort={daemon}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=pmi2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Slurm of one node with eight (pretended) cores; returns its environment."""
    if MISSING:
        pytest.skip(f"there is no {', '.join(MISSING)}: apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    controller, daemon = free_ports(2)
    words = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser()}
    # MPICH names its shared memory by the job, and an aborted one leaves it: numbers must be new.
    words |= {"first": random.randrange(1000, 60_000_000)}
    words |= {"folder": folder, "controller": controller, "daemon": daemon}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**words))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
    files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    options = [f"--{name}={folder / file}" for name, file in files.items()]
    started = []

    def start(*line):
        started.append(
            subprocess.Popen(
                line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
            )
        )

    try:
        start("munged", "--foreground", "--force", *options)
        start("slurmctld", "-D")
        start("slurmd", "-D")
        ready = eventually(lambda: "idle" in slurm(environment, "sinfo", "-h", "-o", "%T").stdout)
        assert ready, [p.read_text() for p in folder.glob("*.log")]
        yield environment
    finally:
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def slurm(environment, *line, cwd=None):
    return ran(line, env=environment, cwd=cwd)


@pytest.mark.parametrize("cores", [1, 2])
def test_srun_starts_one_group_with_the_threads_it_grants(cluster, tmp_path, cores):
    srun = ["srun", "-n", 3, "-c", cores, "--mpi=pmi2"]
    done = slurm(cluster, *srun, *MANYHANDS, "train", *SMALL, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    run = record(tmp_path / "run")
    assert (run["processes"], run["config"]["workers"]) == (3, 3)
    assert run["machine"]["threads_per_worker"] == cores
    assert "MPICH" in run["machine"]["mpi"]


def test_srun_starts_your_own_strategy_from_its_file(cluster, tmp_path):
    (tmp_path / "mine.py").write_text(blocks("how-to/own-strategy.md", "python")[0])
    given = ["--strategy", "mine.py:Nudge", "--beta", "0.3", "--max-steps", 8, "--output", "run"]
    srun = ["srun", "-n", 2, "--mpi=pmi2", *MANYHANDS, "train", *SMALL, *given]
    done = slurm(cluster, *srun, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = record(tmp_path / "run")
    assert (run["config"]["strategy"], run["config"]["beta"]) == ("Nudge", 0.3)
    assert (run["processes"], run["result"]["steps"]) == (2, 8)


def test_srun_starts_one_benchmark_of_all_reduces(cluster, tmp_path):
    given = ["--sizes", "1KB", "--algorithms", "ring", "--output", tmp_path / "out"]
    done = slurm(cluster, "srun", "-n", 3, "--mpi=pmi2", *MANYHANDS, "allreduce", *given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("records and picture") == 1
    records = json.loads((tmp_path / "out/allreduce.json").read_text())
    assert [(r["workers"], r["algorithm"]) for r in records] == [(3, "mpi"), (3, "ring")]


JOINS = """
import torch
import manyhands as mh

torch.manual_seed(0)
model = torch.nn.Linear(3, 1, bias=False)
with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.5)) as hands:
    for _ in range(20):
        x = torch.eye(3)[hands.rank :][:1]  # every worker knows one weight only
        hands.step((model(x) - 1 - hands.rank).square().mean())
    weights = model.weight.detach().round(decimals=2).tolist()
print(f"worker {hands.rank} of {hands.size}: {weights}")
"""


def test_srun_starts_the_workers_of_a_loop_of_one_s_own(cluster, tmp_path):
    """Together they find what none could alone."""
    (tmp_path / "mine.py").write_text(JOINS)
    srun = ["srun", "-n", 3, "--mpi=pmi2"]
    done = slurm(cluster, *srun, sys.executable, "mine.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = sorted(line for line in done.stdout.splitlines() if line.startswith("worker"))
    assert told == [f"worker {rank} of 3: [[1.0, 2.0, 3.0]]" for rank in range(3)]


def test_srun_with_pmix_starts_open_mpi(cluster, tmp_path):
    probe = slurm(cluster, "srun", "--mpi=pmix", "true")
    if probe.returncode:
        pytest.skip(f"this Slurm has no PMIx: {probe.stderr.splitlines()[0]}")
    srun = ["srun", "-n", 2, "--mpi=pmix"]
    done = slurm(cluster, *srun, *MANYHANDS, "train", *SMALL, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    run = record(tmp_path / "run")
    assert run["processes"] == 2
    assert "Open MPI" in run["machine"]["mpi"]


def test_tasks_without_an_mpi_interface_are_refused_once(cluster, tmp_path):
    srun = ["srun", "-n", 2, "--mpi=none"]
    done = slurm(cluster, *srun, *MANYHANDS, "train", *SMALL, "--output", tmp_path / "run")
    assert done.returncode == 3
    assert done.stderr.count("manyhands:") == 1, done.stderr
    assert "srun --mpi=pmi2" in done.stderr
    assert not (tmp_path / "run").exists()


def test_an_option_that_cannot_work_is_told_once(cluster):
    done = slurm(cluster, "srun", "-n", 3, "--mpi=pmi2", *MANYHANDS, "train", "--lr", "nan")
    assert done.returncode == 2
    assert done.stderr.count("manyhands: lr is nan") == 1, done.stderr


def test_a_run_is_submitted_and_followed_to_its_end(cluster, tmp_path):
    train = ["train", *SMALL, "--workers", 2, "--output", "run", "--slurm", "--nodes", 1]
    done = slurm(cluster, *MANYHANDS, *train, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is submitted" in done.stderr
    assert "test accuracy" in done.stdout
    run = record(tmp_path / "run")
    assert run["processes"] == 2
    assert "srun --mpi=pmi2" in (tmp_path / "run/slurm.sh").read_text()


def test_a_job_that_fails_fails_the_command(cluster, tmp_path):
    (tmp_path / "mine.py").write_text("def make():\n    raise RuntimeError('no hands')\n")
    train = ["train", "--data", "blobs", "--model", "mine:make", "--output", "run", "--slurm"]
    done = slurm(
        {**cluster, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}"},
        *MANYHANDS,
        *train,
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert "RuntimeError: no hands" in done.stdout


def test_a_job_is_cancelled_when_its_follower_is_asked_to_stop(cluster, tmp_path):
    train = ["train", *SMALL[:4], "--epochs", "1000000", "--output", "run", "--slurm"]
    process = subprocess.Popen(
        [*MANYHANDS, *train],
        env=cluster,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert eventually(lambda: "RUNNING" in slurm(cluster, "squeue", "-h", "-o", "%T").stdout)
        process.terminate()
        process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode != 0
    assert "RUNNING" not in slurm(cluster, "squeue", "-h", "-o", "%T").stdout


def test_where_there_is_no_slurm_that_is_said(tmp_path):
    environment = {**os.environ, "PATH": "/nowhere"}
    done = slurm(environment, *MANYHANDS, "train", *SMALL, "--slurm", cwd=tmp_path)
    assert done.returncode == 3
    assert "there is no sbatch here" in done.stderr
    assert list(Path(tmp_path).iterdir()) == []
