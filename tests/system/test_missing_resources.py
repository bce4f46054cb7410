"""On a machine that lacks something, every command says what, how much is needed, what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from running import MANYHANDS, ran

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/faults"))
from commands import write_recipe

from manyhands.data.spark.session import JAVA, java_version
from manyhands.launch import mpi

TRAIN = [*MANYHANDS, "train", "--quiet", "--data", "mnist", "--limit", "600", "--model", "mlp"]
TRAIN += ["--epochs", "1", "--workers", "2"]
ENLARGE = "enlarge it (docker run --shm-size=1g"
JOIN = """
    import torch
    import manyhands as mh
    model = torch.nn.Linear(100_000, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mh.join(model, optimizer) as hands:
        hands.step(model(torch.ones(2, 100_000)).mean())
"""


def _mounts() -> bool:
    line = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(line, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_mounts = pytest.mark.skipif(not _mounts(), reason="this user cannot mount a small tmpfs")


def within(size, folder, line, **options):
    """Run a command that sees a file system of that size in the place of `folder`."""
    mount = f'mount -t tmpfs -o size={size} tmpfs "{folder}" && exec "$@"'
    return ran(["unshare", "-m", "sh", "-c", mount, "sh", *line], **options)


@needs_mounts
@pytest.mark.parametrize(
    ("size", "options", "told"),
    [
        ("100k", ["--mpi", "mpich"], "2 processes under mpich needs 2.1 MiB"),
        ("3m", ["--mpi", "mpich"], "an all-reduce of 2 processes in shared memory needs 2.3 MiB"),
        ("4m", ["--mpi", "openmpi"], "2 processes under openmpi needs 17 MiB"),
        ("100k", ["--strategy", "hogwild"], "numbers that all workers share needs 0.5 MiB"),
    ],
)
def test_too_little_shared_memory(size, options, told, tmp_path):
    done = within(size, "/dev/shm", [*TRAIN, *options, "--output", tmp_path / "run"])
    assert done.returncode == 3, done.stderr
    assert told in done.stderr
    assert ENLARGE in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@needs_mounts
def test_a_small_window_fits_where_the_usual_one_does_not(tmp_path):
    line = [*TRAIN, "--mpi", "mpich", "--allreduce", "shared-memory", "--output", tmp_path / "run"]
    done = within("6m", "/dev/shm", line)
    assert done.returncode == 0, done.stderr


@needs_mounts
@pytest.mark.parametrize(("kind", "size"), [("mpich", "100k"), ("openmpi", "4m"), ("mpich", "3m")])
def test_join_on_too_little_shared_memory(kind, size, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(JOIN))
    line, environment = mpi.mpiexec_command(mpi.find_mpi(kind), 2, [str(script)])
    done = within(size, "/dev/shm", line, env=environment)
    assert done.returncode != 0
    assert "LaunchError: /dev/shm has" in done.stderr
    assert ENLARGE in done.stderr
    assert "Bus error" not in done.stdout + done.stderr


@needs_mounts
def test_doctor_sees_too_little_shared_memory():
    done = within("4m", "/dev/shm", [*MANYHANDS, "doctor"], env=_wide())
    lines = [line for line in done.stdout.splitlines() if "enlarge /dev/shm" in line]
    assert any("MiB free" in line and "workers need" in line for line in lines), done.stdout
    assert any("MPI openmpi" in line and "needs 17 MiB" in line for line in lines), done.stdout


@pytest.mark.parametrize("options", [["--mpi", "mpich"], ["--strategy", "hogwild"]])
def test_too_few_open_files(options, tmp_path):
    line = ["sh", "-c", 'ulimit -n 32 && exec "$@"', "sh", *TRAIN, *options]
    done = ran([*line, "--output", tmp_path / "run"])
    assert done.returncode == 3, done.stderr
    assert "a process may keep 32 files open here, but a run of 2 processes" in done.stderr
    assert "ulimit -n 1024" in done.stderr
    assert not (tmp_path / "run").exists()


@needs_mounts
@pytest.mark.parametrize(("size", "code"), [("64k", 3), ("1500k", 1)])
def test_a_full_disk_is_named(size, code, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    line = [*TRAIN, "--checkpoint-every", "1steps", "--output", place / "run"]
    done = within(size, place, line)
    assert done.returncode == code, done.stderr
    (told,) = done.stderr.strip().splitlines()
    assert f"{place}/run has " in told
    assert "free; free some space" in told or "MiB; free some space" in told
    assert "output" in told


@needs_mounts
def test_a_small_tmpdir_is_named_before_the_data_is_written(tmp_path):
    place, script = tmp_path / "small", tmp_path / "script.py"
    place.mkdir()
    script.write_text(
        textwrap.dedent("""
        import numpy as np, torch, manyhands as mh
        data = mh.Data(train=(np.zeros((20_000, 100), "float32"), np.arange(20_000) % 3))
        mh.fit(torch.nn.Linear(100, 3), data, workers=2, epochs=1)
    """)
    )
    done = within("2m", place, [sys.executable, script], env={**_wide(), "TMPDIR": str(place)})
    assert done.returncode != 0
    assert f"LaunchError: {place}/" in done.stderr
    assert "needs 7.8 MiB" in done.stderr
    assert "TMPDIR" in done.stderr


@needs_mounts
def test_a_report_on_a_full_disk_names_the_folder(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    done = ran([*TRAIN, "--output", tmp_path / "run"])
    assert done.returncode == 0, done.stderr
    done = within("16k", place, [*MANYHANDS, "report", tmp_path / "run", "--output", place])
    assert done.returncode == 1
    (told,) = done.stderr.strip().splitlines()
    assert "No space left on device" in told
    assert str(place) in told


@needs_mounts
def test_preparing_on_a_full_disk_names_the_folder_and_what_is_needed(tmp_path):
    pytest.importorskip("pyspark", reason="pip install '.[spark]'")
    if (java_version() or 0) < JAVA:
        pytest.skip(f"there is no Java {JAVA} or newer here")
    place = tmp_path / "small"
    place.mkdir()
    line = [*MANYHANDS, "prepare", write_recipe(tmp_path, rows=3000), "--memory", "1g"]
    done = within("32k", place, [*line, "--output", place / "out"])
    assert done.returncode == 1, done.stderr
    *stages, told = done.stderr.strip().splitlines()
    assert all("Traceback" not in stage for stage in stages)
    assert "No space left on device, the shards of 3,000 rows take up to 1.2 MiB: " in told
    assert f"{place} has " in told
    assert "free some space, or set output" in told


def _wide() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "300"}
