"""Under somebody's own mpiexec: one group, or one message that says why there is none."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from pages import blocks
from running import ran, record

from manyhands.launch import mpi as mpis

ROOT = Path(__file__).parents[2]
SMALL = ["--data", "blobs", "--model", "mlp", "--epochs", "1"]
TRAIN = ["-m", "manyhands", "train", *SMALL]


@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_the_library_of_that_mpiexec_is_loaded(tmp_path, kind):
    line, environment = mpis.mpiexec_command(
        mpis.find_mpi(kind), 2, [*TRAIN, "--output", str(tmp_path / "run")]
    )
    del environment["MPI4PY_LIBMPI"]
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of training") == 1


def test_rank_0_alone_prints_a_line_an_epoch(tmp_path):
    for quiet in ([], ["--quiet"]):
        given = [*TRAIN, "--json", *quiet, "--output", str(tmp_path / f"run{len(quiet)}")]
        line, environment = mpis.mpiexec_command(mpis.find_mpi("mpich"), 2, given)
        done = ran(line, env=environment)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["stopped"] == "epochs"
        assert done.stderr.count("sync × 2: starting\n") == (not quiet)
        assert len(re.findall(r"^epoch 1 of 1: .*loss ", done.stderr, re.M)) == (not quiet)


def benchmark(tmp_path, *words):
    line = ["-m", "manyhands", "allreduce", "--sizes", "1KB,4KB", "--output", str(tmp_path / "out")]
    command, environment = mpis.mpiexec_command(mpis.find_mpi("mpich"), 3, [*line, *words])
    return ran(command, env=environment)


def test_the_benchmark_of_all_reduces_is_one_of_that_group(tmp_path):
    done = benchmark(tmp_path, "--algorithms", "ring,naive")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("records and picture") == 1
    records = json.loads((tmp_path / "out/allreduce.json").read_text())
    assert {r["workers"] for r in records} == {3}
    assert {r["algorithm"] for r in records} == {"mpi", "naive", "ring"}
    assert all(r["correct"] for r in records)


def test_a_benchmark_of_another_size_than_the_group_is_refused_once(tmp_path):
    done = benchmark(tmp_path, "--workers", "2")
    assert done.returncode == 2
    assert done.stderr.count("workers is '2', but this group has 3 processes") == 1, done.stderr
    assert not (tmp_path / "out").exists()


def test_a_script_goes_on_with_the_libraries_that_it_had(tmp_path):
    """Training chooses kernels and threads; the processes are those of whoever started them."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, manyhands as mh\n"
        "def state(): return (torch.backends.mkldnn.enabled, torch._C._get_nnpack_enabled(),\n"
        "                     torch.get_num_threads())\n"
        "torch.set_num_threads(2)\n"
        "before = state()\n"
        "mh.fit('mlp', 'blobs', epochs=1, threads=1, kernels='native', output=sys.argv[1],\n"
        "       progress=False)\n"
        "print('the same' if state() == before else f'{before} became {state()}')\n"
    )
    line, environment = mpis.mpiexec_command(
        mpis.find_mpi("mpich"), 2, [str(script), str(tmp_path / "run")]
    )
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same") == 2, done.stdout


def test_your_own_strategy_of_your_own_script(tmp_path):
    (tmp_path / "script.py").write_text(
        blocks("how-to/own-strategy.md", "python")[0]
        + "\nmh.fit('logistic', 'blobs', strategy=Nudge(beta=0.3), max_steps=8, output='run',\n"
        "       kernels='default', progress=False)\n"
    )
    line, environment = mpis.mpiexec_command(mpis.find_mpi("mpich"), 2, ["script.py"])
    done = ran(line, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = record(tmp_path / "run")
    assert (run["config"]["strategy"], run["config"]["beta"]) == ("Nudge", 0.3)
    assert (run["processes"], run["result"]["steps"]) == (2, 8)


@pytest.mark.parametrize(("mpiexec", "library"), [("mpich", "openmpi"), ("openmpi", "mpich")])
def test_two_kinds_of_mpi_are_explained_once(tmp_path, mpiexec, library):
    line, environment = mpis.mpiexec_command(
        mpis.find_mpi(mpiexec), 2, [*TRAIN, "--output", str(tmp_path / "run")]
    )
    other = mpis.find_mpi(library)
    environment |= {**other.environment, "MPI4PY_LIBMPI": other.library}
    done = ran(line, env=environment)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("two kinds") == 1, done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [["--lr", "nan"], ["--wrokers", "2"]])
def test_an_option_that_cannot_work_is_told_once(option):
    line, environment = mpis.mpiexec_command(mpis.find_mpi("mpich"), 3, [*TRAIN, *option])
    done = ran(line, env=environment)
    assert done.returncode == 2
    assert done.stderr.count("manyhands:") == 1, done.stderr


def test_what_only_one_process_misses_ends_all_and_is_told_once(tmp_path):
    (tmp_path / "mine.py").write_text("from torch.nn import Linear\nmake = lambda: Linear(20, 4)\n")
    mpi = mpis.find_mpi("mpich")
    line, environment = mpis.mpiexec_command(
        mpi, 1, ["-m", "manyhands", "train", "--model", "mine:make"]
    )
    seeing = ["-env", "PYTHONPATH", f"{ROOT / 'src'}:{tmp_path}", *line[line.index("-n") :]]
    blind = ["-env", "PYTHONPATH", str(ROOT / "src"), *line[line.index("-n") :]]
    done = ran([mpi.mpiexec, *seeing, ":", *blind], env=environment)
    assert done.returncode == 2
    assert done.stderr.count("no module 'mine'") == 1, done.stderr


def test_two_versions_are_explained_once(tmp_path):
    for path in (ROOT / "src/manyhands").iterdir():
        os.makedirs(tmp_path / "manyhands", exist_ok=True)
        if path.name not in ("_version.py", "__pycache__"):
            os.symlink(path, tmp_path / "manyhands" / path.name)
    (tmp_path / "manyhands/_version.py").write_text('"""Later."""\n\n__version__ = "99.0"\n')
    mpi = mpis.find_mpi("mpich")
    line, environment = mpis.mpiexec_command(mpi, 1, TRAIN)
    ours = ["-env", "PYTHONPATH", str(ROOT / "src"), "-n", "2", *line[line.index("-n") + 2 :]]
    later = ["-env", "PYTHONPATH", str(tmp_path), *line[line.index("-n") :]]
    done = ran([mpi.mpiexec, *ours, ":", *later], env=environment)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("the hosts differ: manyhands") == 1, done.stderr
    assert "manyhands 99.0" in done.stderr


def test_tasks_of_srun_that_cannot_find_each_other_are_refused_once():
    line = [sys.executable, *TRAIN]
    said = []
    for task in ("0", "1"):
        environment = {**os.environ, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": task}
        done = ran(line, env=environment)
        assert done.returncode == 3
        said.append(done.stderr)
    assert "srun --mpi=pmi2" in said[0]
    assert said[1] == ""


def test_a_run_that_goes_on_in_a_group_forgets_what_was_damaged(tmp_path):
    steps = ["--checkpoint-every", "10steps", "--max-steps"]
    mpi, output = mpis.find_mpi("mpich"), str(tmp_path / "run")
    line, environment = mpis.mpiexec_command(mpi, 2, [*TRAIN, "--output", output, *steps, "20"])
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    damaged = tmp_path / "run/checkpoints/step-99999999"
    shutil.copytree(tmp_path / "run/checkpoints/step-00000010", damaged)
    (damaged / "rank-1.safetensors").unlink()
    again = ["-m", "manyhands", "train", "--resume", output, *steps, "30"]
    line, environment = mpis.mpiexec_command(mpi, 2, again)
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    assert not damaged.exists()
