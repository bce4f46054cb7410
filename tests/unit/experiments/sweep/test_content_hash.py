"""A run that is kept is one of the same code and data, whatever their names."""

import functools
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import manyhands as mh
from manyhands.experiments.sweep.content_hash import ContentHashes
from manyhands.experiments.sweep.plan import make_schedule


def marks(**given):
    return ContentHashes().of(given)


def compiled(source, name="make"):
    """Return what `source` calls `name`, as a script of the user's would have it."""
    space = {"__name__": "__main__", "nn": nn}
    exec(textwrap.dedent(source), space)
    return space[name]


HIDDEN = """
    size = 32
    class Net(nn.Module):
        "What it does."
        scale = 1.0
        def __init__(self, hidden):
            super().__init__()
            self.layer = nn.Linear(4, hidden)
        def forward(self, x):
            return relu(self.layer(x)) * self.scale
    def relu(x):
        return x.clamp(min=0)
    def make():
        return Net(size)
"""


def test_our_own_names_have_no_mark():
    assert marks(model="cnn", data="mnist", loss=None, lr=0.1, slow="1:3") == {}


def test_the_same_code_has_the_same_mark_wherever_it_stands():
    moved = "\n\n    # a remark\n" + HIDDEN.replace('"What it does."', "# nothing is said of it\n")
    assert marks(model=compiled(HIDDEN)) == marks(model=compiled(HIDDEN))
    assert marks(model=compiled(HIDDEN)) == marks(model=compiled(moved))


@pytest.mark.parametrize(
    ("before", "after"),
    [("size = 32", "size = 2"), ("min=0", "min=1"), ("scale = 1.0", "scale = 2.0"),
     ("* self.scale", "+ self.scale"), ("Linear(4, hidden)", "Linear(4, hidden, bias=False)")],
)  # fmt: skip
def test_whatever_the_code_uses_counts(before, after):
    assert marks(model=compiled(HIDDEN)) != marks(model=compiled(HIDDEN.replace(before, after)))


def test_what_a_function_has_with_it_counts():
    def of(hidden):
        return lambda: nn.Linear(4, hidden)

    assert marks(model=of(2)) == marks(model=of(2)) != marks(model=of(3))
    partial = functools.partial(nn.Linear, 4)
    assert marks(model=partial) != marks(model=functools.partial(nn.Linear, 5))


def test_a_model_that_is_made_counts_with_its_weights():
    torch.manual_seed(0)
    one, other = nn.Linear(4, 2), nn.Linear(4, 2)
    assert marks(model=one) != marks(model=other)
    other.load_state_dict(one.state_dict())
    assert marks(model=one) == marks(model=other)


def forms(x, y):
    """Return the same data as a user may give it."""
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return [mh.Data((x, y)), mh.Data(tensors), Subset(tensors, range(6)), (x, y), {"x": x, "y": y}]


def test_data_count_number_by_number():
    x, y = np.arange(24.0).reshape(8, 3), np.arange(8)
    changed = x.copy()
    changed[5, 2] += 1
    for one, again, other in zip(forms(x, y), forms(x.copy(), y), forms(changed, y), strict=True):
        assert marks(data=one) == marks(data=again) != marks(data=other)


def test_private_data_leave_no_hash():
    x = np.arange(24.0).reshape(8, 3)
    secret = [marks(data=mh.Data((a, a)), private=True) for a in (x, x + 1)]
    assert secret[0] == secret[1]
    assert secret[0] != marks(data=mh.Data((x[:4], x[:4])), private=True)


def test_a_file_counts_by_what_is_in_it(tmp_path):
    path = tmp_path / "own.npz"
    found = []
    for numbers in (np.zeros(4), np.ones(4), np.zeros(4)):
        np.savez(path, x=numbers)
        found.append(marks(data=str(path)))
    assert found[0] == found[2] != found[1]


def test_a_function_by_its_name_counts_as_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for hidden in (8, 9):
        module = f"own_models_{hidden}"
        (tmp_path / f"{module}.py").write_text(
            f"from torch import nn\ndef make():\n    return nn.Linear({hidden}, 2)\n"
        )
        found.append(marks(model=f"{module}:make"))
    assert found[0] != found[1]


def test_another_process_finds_the_same(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "from torch import nn\nfrom manyhands.experiments.sweep.content_hash import ContentHashes\n"
        "class Net(nn.Module):\n    kinds = {'a', 'b', 'c'}\n"
        "    def forward(self, x):\n        return x if x in {'a', 'b', 'c'} else list(x)\n"
        "print(ContentHashes().of({'model': Net}))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


def test_a_changed_model_or_other_data_are_other_runs():
    from manyhands.experiments.sweep.compare import describe

    options = {"workers": (1,), "epochs": (1,)}
    asked = describe(None, quick=False, strategies=["sync"], options=options, repeats=1)
    x = np.zeros((8, 4), np.float32)

    def ids(hidden, x):
        objects = {"model": lambda: nn.Linear(4, hidden), "data": mh.Data((x, np.zeros(8, int)))}
        names = {"model": "made", "data": "own"}
        return {run.id for run in make_schedule(asked, names, objects).runs}

    assert ids(2, x) == ids(2, x.copy())
    assert not ids(2, x) & ids(3, x)
    assert not ids(2, x) & ids(2, x + 1)
