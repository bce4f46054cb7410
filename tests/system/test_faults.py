"""Faults struck into real runs: a few of those that `make faults` strikes, and some others."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from running import PATIENCE, manyhands, ran

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/faults"))
import cases
import matrix
from cases import Case
from memory import Mapped

from manyhands.launch import mpi as mpis
from manyhands.testing import VARIABLE, Faults

SMALL = ["--model", "mlp", "--kernels", "default", "--checkpoint-every", "10steps"]


@pytest.mark.parametrize(
    "case",
    [
        Case("sync", "kill", "exchange"),
        Case("server", "kill", "load"),
        Case("server", "kill", "serve", 2),
        Case("hogwild", "kill", "checkpoint"),
        Case("gossip", "stop", "checkpoint"),
        Case("pipeline", "kill", "gradient"),
        Case("tensor", "stop", "exchange"),
    ],
    ids=str,
)
def test_a_fault_ends_as_promised(case):
    outcome = matrix.strike(case, matrix.undisturbed(case.strategy, case.kind))
    assert outcome.promised, outcome


@pytest.mark.parametrize("ours", [True, False])
def test_memory_that_is_left_is_told_from_that_of_others(tmp_path, ours):
    name = Path("/dev/shm") / f"{tmp_path.name}-{os.getpid()}"
    code = "import mmap, sys, time; file = open(sys.argv[1], 'w+b'); file.truncate(9); "
    code += "held = mmap.mmap(file.fileno(), 9); time.sleep(2)"
    folder = tmp_path if ours else tmp_path.parent / "another"
    with Mapped(tmp_path) as memory:
        line = [sys.executable, "-c", code, str(name)]
        subprocess.run(line, env={**os.environ, "TMPDIR": str(folder)}, check=True)
    try:
        assert memory.left(0.1) == ({name.name} if ours else set())
    finally:
        name.unlink()
    assert memory.left(0.1) == set()


def data(path, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    np.savez(path, train_x=x, train_y=(x.sum(axis=1) > 0).astype(np.int64))


def test_data_that_changed_since_the_checkpoint_is_refused(tmp_path):
    data(tmp_path / "mine.npz", 0)
    output = tmp_path / "run"
    given = ["--data", tmp_path / "mine.npz", "--epochs", 5, "--batch-size", 40]
    done = manyhands("train", *SMALL, *given, "--output", output)
    assert done.returncode == 0, done.stderr
    data(tmp_path / "mine.npz", 1)
    refused = manyhands("train", "--resume", output, "--epochs", 6)
    assert refused.returncode == 2
    assert "the data has changed" in refused.stderr


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    output = tmp_path / "run"
    done = manyhands("train", *SMALL, "--data", "blobs", "--strategy", "gossip", "--output", output)
    assert done.returncode == 0, done.stderr
    for given, message in (
        (["--strategy", "sync"], "strategy is 'sync', but the run"),
        (["--workers", "3"], "their number stays"),
        (["--model", "mlp6"], "model is 'mlp6', but the run"),
    ):
        refused = manyhands("train", "--resume", output, *given)
        assert refused.returncode == 2
        assert message in refused.stderr


def sockets(pid):
    """Return the sockets that a process holds, by their numbers."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def listening(pid):
    """Return the addresses beyond the host that a process listens on, as the kernel has them.

    What mpiexec listens on, its children inherit; SECURITY.md names that, and it is not theirs.
    """
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    own = sockets(pid) - sockets(parent)
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            local = fields[1].rpartition(":")[0]
            home = local.endswith("7F") or local == "0" * 24 + "01000000"
            waits = fields[3] == "0A" or table.startswith("udp")
            if fields[9] in own and waits and not home:
                found.append(fields[1])
    return found


def by_rpc(output, **given):
    """Return the command of a pipeline of two parts and a driver, which writes no checkpoints."""
    line = cases.train("pipeline", output, **given)
    place = line.index("--checkpoint-every")
    return [*line[:place], *line[place + 2 :], "--transport", "rpc"]


@pytest.mark.parametrize("strategy", ["sync", "server", "hogwild", "rpc"])
def test_no_worker_listens_beyond_the_host(tmp_path, strategy):
    from manyhands.launch.status_board import Board

    processes = 3 if strategy == "rpc" else cases.processes(strategy)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    given = {"epochs": 100_000, "timeout": 60}
    output = tmp_path / "run"
    line = by_rpc(output, **given) if strategy == "rpc" else cases.train(strategy, output, **given)
    run = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL)
    try:
        notes = []
        deadline = time.monotonic() + 100
        while len(notes) < processes or any(note.step < 3 for note in notes):
            assert time.monotonic() < deadline
            boards = tmp_path.glob("manyhands-*/*/board")
            notes = [note for board in boards for note in Board(board, processes).read()]
            time.sleep(0.1)
        assert [listening(note.pid) for note in notes] == [[]] * processes
    finally:
        run.terminate()
        run.wait(PATIENCE)


def test_a_run_by_rpc_ends_when_a_part_dies(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Faults().kill(rank=2, step=5, phase="exchange"):
        line = by_rpc(tmp_path / "run", timeout=60)
        code, said = matrix.run(line, tmp_path, os.environ[VARIABLE])
    assert code == 1, said
    assert "rank 2 died" in said
    assert matrix.eventually(lambda: not matrix.alive(tmp_path), 60)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_a_hang_in_a_group_of_others_becomes_a_report(tmp_path, monkeypatch, mpi, rank):
    """Under somebody's mpiexec each process watches over its host, whoever it is that hangs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments = ["-m", "manyhands", "train", "--data", "blobs", "--model", "mlp", "--epochs", "9"]
    arguments += ["--kernels", "default", "--timeout", "8", "--output", str(tmp_path / "run")]
    line, environment = mpis.mpiexec_command(mpis.find_mpi(mpi), 2, arguments)
    with Faults().stop(rank=rank, step=5, phase="gradient"):
        environment[VARIABLE] = os.environ[VARIABLE]
        done = ran(line, env=environment)
    assert done.returncode
    assert f"missing: rank {rank} (stopped gradient, step 5)" in done.stderr
    assert "in allreduce" in done.stderr  # the other's stack
    assert matrix.eventually(lambda: not matrix.alive(tmp_path), 60)
