"""With both MPI wheels installed, scripts of your own load the library of their mpiexec."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest
from running import MANYHANDS, ran

from manyhands.launch import mpi

SCRIPTS = {
    "torch_mpi": """
        import torch, torch.distributed as dist
        import manyhands.torch_mpi
        dist.init_process_group("mpi4py")
        x = torch.ones(4)
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 4
        dist.destroy_process_group()
    """,
    "allreduce": """
        import numpy as np
        from manyhands import allreduce
        from mpi4py import MPI
        x, y = np.ones(4), np.empty(4)
        allreduce.ring(x, y, MPI.COMM_WORLD)
        assert y.tolist() == [2.0] * 4
    """,
}


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_library_of_the_mpiexec_is_loaded(kind, name, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPTS[name]))
    line, environment = mpi.mpiexec_command(mpi.find_mpi(kind), 2, [str(script)])
    del environment["MPI4PY_LIBMPI"]  # as under an mpiexec that the user started
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr


def test_doctor_says_which_mpiexec_fits_a_script_that_imports_mpi4py(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    mpich, openmpi = (mpi.find_mpi(kind) for kind in ("mpich", "openmpi"))
    for loaded, other in ((mpich, openmpi), (openmpi, mpich)):
        monkeypatch.setenv("MPI4PY_LIBMPI", loaded.library)
        for name, value in loaded.environment.items():
            monkeypatch.setenv(name, value)
        line = _line(ran([*MANYHANDS, "doctor"]).stdout)
        mismatch = "but mpi4py loads" in line
        assert mismatch == (("of Open MPI" in line) == (other.kind == "openmpi"))
        assert not mismatch or f"with {loaded.mpiexec}, or import manyhands.torch_mpi" in line


def _line(told: str) -> str:
    (found,) = [line for line in told.splitlines() if line.split()[1:2] == ["mpiexec"]]
    return found
