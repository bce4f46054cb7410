"""A worker that fails in a loop of the user's own ends all, and its traceback is read once."""

import os
import sys

import pytest
from running import ran

from manyhands import mpis

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


@pytest.mark.parametrize(
    ("launcher", "where"), [("mpiexec", "inside"), ("mpiexec", "after"), ("torchrun", "inside")]
)
def test_a_worker_that_fails_ends_all(launcher, where, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    if launcher == "mpiexec":
        line, environment = mpis.command(mpis.find_mpi(), 2, [str(script), where])
    else:
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        line += ["--nproc-per-node", "2", str(script), where]
        environment = dict(os.environ)
    done = ran(line, env=environment)
    assert done.returncode != 0
    assert done.stderr.count("ValueError: a bad day") == 1
    assert "not reached" not in done.stdout
