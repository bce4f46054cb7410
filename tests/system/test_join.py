"""Workers of a user's own loop that fail or hang: all are ended, and what happened is told once."""

import os
import re
import sys

import pytest
from running import eventually, ran

from manyhands.launch import mpi

SCRIPT = """
import sys
import torch
import manyhands as mh

model = torch.nn.Linear(3, 1)
with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as hands:
    for step in range(100):
        if sys.argv[1] == "inside" and hands.rank == 1 and step == 5:
            raise ValueError("a bad day")
        hands.step(model(torch.randn(4, 3)).square().mean())
if sys.argv[1] == "after" and hands.rank == 1:
    raise ValueError("a bad day")
with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as hands:
    hands.step(model(torch.randn(4, 3)).square().mean())
print("not reached")
"""


HANGS = """
import sys, time
import torch
import manyhands as mh

def lost_in_thought():
    time.sleep(600)

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with mh.join(model, optimizer, timeout=float(sys.argv[2])) as hands:
    for step in range(5 + 5 * hands.rank if sys.argv[1] == "uneven" else 10):
        if step == 3:
            time.sleep(1.5)  # for as long as one likes, where nobody waits for longer than that
        if sys.argv[1] == "thought" and hands.rank == 1 and step == 5:
            lost_in_thought()
        hands.step(model(torch.randn(4, 3)).square().mean())
time.sleep(600 if sys.argv[1] == "uneven" else 0)
print("not reached")
"""


def started(launcher, script, *arguments):
    """Run a script with two workers; returns what it said and how it ended."""
    if launcher == "mpiexec":
        line, environment = mpi.mpiexec_command(mpi.find_mpi(), 2, [str(script), *arguments])
    else:
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        line += ["--nproc-per-node", "2", str(script), *arguments]
        environment = dict(os.environ)
    return ran(line, env=environment)


@pytest.mark.parametrize(
    ("launcher", "how", "told"),
    [
        ("mpiexec", "thought", r"missing: rank 1 \(in its own code, step 5\)"),
        ("torchrun", "thought", r"missing: rank 1 \(in its own code, step 5\)"),
        ("mpiexec", "uneven", r"missing: rank 0 \(in code after join, step 5\)"),
    ],
)
def test_a_worker_that_hangs_is_told_of_with_its_stack(launcher, how, told, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text(HANGS)
    done = started(launcher, script, how, "5")
    assert done.returncode != 0
    assert "not reached" not in done.stdout
    assert len(re.findall(r"no word for [57] s", done.stderr)) == 1  # worker 1 waits 2 s more
    assert re.search(told, done.stderr)
    assert how == "uneven" or "in lost_in_thought" in done.stderr
    assert not list(tmp_path.glob("manyhands-*"))


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_a_loop_without_a_hang_leaves_nothing_behind(launcher, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text(HANGS)
    done = started(launcher, script, "well", "60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not reached") == 2
    assert not list(tmp_path.glob("manyhands-*"))


DIES = """
import os, signal, sys
import torch
import manyhands as mh

how, rank = sys.argv[1], int(sys.argv[2])
model = torch.nn.Linear(3, 1)
with mh.join(model, torch.optim.SGD(model.parameters(), lr=0.1)) as hands:
    for step in range(100):
        if hands.rank == rank and step == 5:
            if how == "exception":
                raise ValueError("a bad day")
            if how == "exit":
                sys.exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        hands.step(model(torch.randn(4, 3)).square().mean())
"""


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize(
    ("launcher", "how"),
    [("mpiexec", "exception"), ("mpiexec", "exit"), ("mpiexec", "kill"), ("torchrun", "kill")],
)
def test_a_loop_that_ends_early_leaves_nothing_behind(launcher, how, rank, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = tmp_path / "script.py"
    script.write_text(DIES)
    done = started(launcher, script, how, rank)
    assert done.returncode != 0
    assert eventually(lambda: not list(tmp_path.glob("manyhands-*")), 60)


@pytest.mark.parametrize(
    ("launcher", "where"), [("mpiexec", "inside"), ("mpiexec", "after"), ("torchrun", "inside")]
)
def test_a_worker_that_fails_ends_all(launcher, where, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = started(launcher, script, where)
    assert done.returncode != 0
    assert done.stderr.count("ValueError: a bad day") == 1
    assert "not reached" not in done.stdout


OVERLAPS = """
import sys, time
import torch
import manyhands as mh

class Stuck(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if hands.rank == 1 and step == 3:
            if sys.argv[1] == "fails":
                raise ValueError("a bad day")
            time.sleep(600)
        return gradient

first, second = torch.nn.Linear(3, 600), torch.nn.Linear(600, 600)  # more than a bucket
model = torch.nn.Sequential(first, second)
with mh.join(model, torch.optim.SGD(model.parameters(), lr=1e-3), overlap=True, timeout=5) as hands:
    for step in range(10):
        hands.step(second(Stuck.apply(first(torch.randn(4, 3)))).square().mean())
print("not reached")
"""


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
@pytest.mark.parametrize(
    ("how", "told"),
    [("fails", "a bad day"), ("hangs", r"missing: rank 1 \(in its own code, step 3\)")],
)
def test_a_worker_lost_while_its_gradients_travel_ends_all(launcher, how, told, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(OVERLAPS)
    done = started(launcher, script, how)
    assert done.returncode != 0
    assert "not reached" not in done.stdout
    assert re.search(told, done.stderr)
    assert "Fatal Python error" not in done.stderr
    assert "Segmentation" not in done.stderr
