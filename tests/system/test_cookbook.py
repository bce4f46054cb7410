"""The cookbook's code runs as it stands, and two workers end where the plain loop ends."""

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from running import ran

from manyhands.launch import mpi

ROOT = Path(__file__).parents[2]
BLOCKS = dict(
    re.findall(
        r"^```python\n# (after: \w+|before: \w+)\n(.*?)^```$",
        (ROOT / "docs" / "cookbook.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)
README = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)
BLOCKS |= {f"readme: {'joins' if 'mh.join(' in code else 'fits'}": code for code in README}
JOINED = [name for name, code in BLOCKS.items() if "mh.join(" in code]
FITTED = [name for name, code in BLOCKS.items() if "mh.fit(" in code]

YOURS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

torch.set_default_dtype(torch.float64)
x = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(x.float() if {single} else x, (x[:, 0] * x[:, 1] > 0).long())


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
"""

# All of them in one launch: to start processes is what costs.
DRIVER = """
import runpy, sys
from pathlib import Path
import torch

for name in sys.argv[1:]:
    torch.manual_seed(0)
    done = runpy.run_path(name + ".py", run_name="__main__")
    if done["hands"].rank == 0:
        torch.save(done["model"].state_dict(), name + "-end.pt")
        print(name, "with", done["hands"].size)
"""


def name_of(block):
    return block.replace(": ", "-")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "driver.py").write_text(DRIVER)
    for name, code in BLOCKS.items():
        (tmp_path / f"{name_of(name)}.py").write_text(code)
    return tmp_path


@pytest.fixture
def yours(folder):
    """Write the user's module in double or single precision; forget it and its type after."""

    def write(*, single):
        text = YOURS.format(single=single)
        if single:
            text = text.replace("torch.set_default_dtype(torch.float64)", "")
        (folder / "yours.py").write_text(text)

    yield write
    sys.modules.pop("yours", None)
    torch.set_default_dtype(torch.float32)


def test_nothing_is_left_out():
    after = ["ddp", "fabric", "horovod", "interrupted", "plain"]
    assert sorted(JOINED) == [*(f"after: {name}" for name in after), "readme: joins"]
    assert sorted(FITTED) == ["after: fit", "after: opacus", "after: trainer", "readme: fits"]
    before = {"plain", "ddp", "horovod", "fabric", "trainer", "sklearn", "opacus"}
    assert "after: sklearn" in BLOCKS
    assert {name.split(": ")[1] for name in BLOCKS if name.startswith("before")} == before


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_a_loop_of_ones_own_ends_where_the_plain_one_ends(launcher, folder, yours):
    yours(single=False)
    names = [name_of(name) for name in JOINED]
    if launcher == "mpiexec":
        line, environment = mpi.mpiexec_command(mpi.find_mpi(), 2, ["driver.py", *names])
    else:
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        line += ["--nproc-per-node", "2", "driver.py", *names]
        environment = dict(os.environ)
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\S+) with 2$", done.stdout, re.MULTILINE) == names
    torch.manual_seed(0)
    plain = runpy.run_path("before-plain.py")["model"].state_dict()
    for name in ("after-plain-end.pt", "after-interrupted-end.pt"):
        end = torch.load(name)
        assert max(float((plain[name] - end[name]).abs().max()) for name in plain) < 1e-10


@pytest.mark.parametrize("name", FITTED)
def test_a_loop_given_away(name, folder, yours):
    yours(single=True)
    done = runpy.run_path(f"{name_of(name)}.py", run_name="__main__")
    assert done["result"].record["status"] == "finished"
    assert isinstance(done["result"].model, torch.nn.Module)


def test_a_search_of_scikit_learn(folder):
    done = runpy.run_path("after-sklearn.py", run_name="__main__")
    assert done["search"].best_score_ > 0.8
