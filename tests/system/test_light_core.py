"""Without training or reports, `allreduce` and `torch_mpi` need only mpi4py, NumPy and PyTorch."""

from __future__ import annotations

import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from running import ran

from manyhands.launch import mpi

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = {"mpi4py", "mpich", "numpy", "torch"}

# Runs a script as if some packages were not installed.
WITHOUT = """
import runpy, sys

sys.modules.update(dict.fromkeys(sys.argv[2].split(",")))
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def others() -> list[str]:
    """Return the packages that manyhands needs, without the core's own and PyTorch's."""
    needed = {Requirement(line).name for line in PROJECT["dependencies"]}
    of_torch = {Requirement(line).name for line in requires("torch") or ()}
    return sorted(needed - CORE - of_torch)


def test_the_heavy_packages_are_among_the_others() -> None:
    assert {"matplotlib", "rich", "cyclopts", "cloudpickle", "safetensors"} <= set(others())


@pytest.mark.parametrize(
    ("script", "printed"),
    [("ring_on_my_arrays.py", "2 processes agree"), ("ddp_over_mpi.py", "2 processes")],
)
def test_a_script_runs_without_them(script: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "without.py").write_text(WITHOUT)
    line = [str(tmp_path / "without.py"), str(ROOT / "examples" / script), ",".join(others())]
    command, environment = mpi.mpiexec_command(mpi.find_mpi(), 2, line)
    done = ran(command, env=environment)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_training_imports_neither_matplotlib_nor_jinja(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules.update(matplotlib=None)\n"
        "from manyhands.training import start_fit\n"
        "if __name__ == '__main__':\n"
        "    for here in (True, False):\n"
        "        run = start_fit.fit('logistic', 'blobs', workers=1, epochs=1, here=here)\n"
        "        print(run.record['status'], 'jinja2.environment' in sys.modules)\n"
    )
    (tmp_path / "train.py").write_text(code)
    done = ran([sys.executable, "train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["finished", "False"] * 2
