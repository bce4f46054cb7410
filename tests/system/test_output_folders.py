"""Output folders as users meet them: two runs at once, kill -9, files and links of their own."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from running import MANYHANDS, PATIENCE, eventually, manyhands, ran, record

from manyhands.launch import mpi
from manyhands.launch.host import hostname

pytestmark = pytest.mark.usefixtures("nobody_is_left")
SMALL = ["--data", "blobs", "--model", "mlp", "--kernels", "default", "--lr", "0.1"]
LONG = [*SMALL, "--epochs", "100000", "--checkpoint-every", "200steps"]


def files(folder):
    """Return every file in a folder, with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def begin(*line, group=0):
    """Start the command line, or a group of it under mpiexec."""
    if group:
        arguments = ["-m", "manyhands", *map(str, line)]
        command, environment = mpi.mpiexec_command(mpi.find_mpi(), group, arguments)
    else:
        command, environment = [*MANYHANDS, *map(str, line)], None
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.fixture(params=[0, 2], ids=["launched", "mpiexec"])
def running(request, tmp_path):
    """A run that has written a checkpoint, of its own workers or under somebody's mpiexec."""
    output = tmp_path / "run"
    run = begin("train", *LONG, "--output", output, group=request.param)
    try:
        assert eventually(lambda: any(output.glob("checkpoints/step-*")))
        yield run, output
    finally:
        run.kill()
        run.communicate()


def resume(output):
    """Resume a run for a few steps, right now."""
    last = max(int(path.name[5:]) for path in output.glob("checkpoints/step-*"))
    done = manyhands("train", "--resume", output, "--max-steps", last + 400)
    assert done.returncode == 0, done.stderr
    assert record(output)["status"] == "finished"
    assert not (output / ".lock").exists()


def test_of_two_runs_started_together_one_has_the_folder(tmp_path):
    same = tmp_path / "same"
    runs = [begin("train", *SMALL, "--epochs", 200, "--output", same) for _ in range(2)]
    said = [run.communicate(timeout=PATIENCE)[1] for run in runs]
    codes = [run.returncode for run in runs]
    assert sorted(codes) == [0, 2], said
    winner, loser = runs[codes.index(0)], said[codes.index(2)]
    assert f"in use by process {winner.pid} on {hostname()}" in loser
    assert "Traceback" not in loser
    assert record(same)["status"] == "finished"
    assert not (same / ".lock").exists()


def test_a_run_that_runs_is_neither_resumed_nor_replaced(running):
    run, output = running
    for line in (["--resume", output], ["--output", output, *SMALL]):
        refused = manyhands("train", *line)
        assert refused.returncode == 2, refused.stderr
        assert f"on {hostname()}" in refused.stderr
        assert "is in use by process" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert run.poll() is None


def test_a_run_whose_launcher_or_first_worker_was_killed_is_resumed_at_once(running):
    run, output = running
    holder = json.loads((output / ".lock").read_text())["pid"]
    os.kill(holder, signal.SIGKILL)
    run.communicate(timeout=PATIENCE)
    assert run.returncode != 0
    resume(output)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_lock(running, signum):
    run, output = running
    run.send_signal(signum)
    run.communicate(timeout=PATIENCE)
    assert eventually(lambda: not (output / ".lock").exists(), 10)


def test_a_run_killed_before_its_first_checkpoint_leaves_the_folder_free(tmp_path):
    output = tmp_path / "run"
    run = begin("train", *SMALL, "--epochs", 100000, "--output", output)
    assert eventually(lambda: (output / "rank-0.log").exists())
    run.kill()
    run.communicate()
    done = manyhands("train", *SMALL, "--epochs", 1, "--output", output)
    assert done.returncode == 0, done.stderr


FAILS = """
from torch import nn


def model():
    raise RuntimeError("built in vain")
"""


def test_a_run_that_failed_before_training_does_not_block_its_folder(tmp_path):
    (tmp_path / "mine.py").write_text(FAILS)
    given = ["--data", "blobs", "--output", "run"]
    failed = manyhands("train", "--model", "mine:model", *given, cwd=tmp_path)
    assert failed.returncode == 1
    assert record(tmp_path / "run")["status"] == "failed"
    done = manyhands("train", *SMALL, "--output", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert record(tmp_path / "run")["status"] == "finished"
    refused = manyhands("train", *SMALL, "--output", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "already holds a run" in refused.stderr


@pytest.mark.parametrize("output", ["own", "."])
def test_files_of_the_user_s_are_not_destroyed(tmp_path, output):
    own = tmp_path / "own"
    own.mkdir()
    (own / "model.safetensors").write_text("years of work")
    (own / "steps.jsonl").write_text("years of work")
    where = tmp_path if output == "own" else own
    done = manyhands("train", *SMALL, "--output", output, cwd=where)
    assert done.returncode == 2
    assert "holds other things (model.safetensors …)" in done.stderr
    assert files(own) == {"model.safetensors": b"years of work", "steps.jsonl": b"years of work"}


def test_links_and_backups_in_a_run_that_is_resumed_are_left_alone(tmp_path):
    output, victim = tmp_path / "run", tmp_path / "victim"
    done = manyhands(
        "train", *SMALL, "--max-steps", 40, "--checkpoint-every", "10steps", "--output", output
    )
    assert done.returncode == 0, done.stderr
    victim.write_text("years of work")
    (output / "steps.jsonl").unlink()
    (output / "steps.jsonl").symlink_to(victim)
    refused = manyhands("train", "--resume", output, "--max-steps", 60)
    assert refused.returncode == 2
    assert f"steps.jsonl is a symbolic link to {victim}" in refused.stderr
    (output / "steps.jsonl").unlink()
    steps = output / "checkpoints"
    (steps / "step-00000040-mybackup").mkdir()
    (steps / "step-foo").mkdir()
    os.mkfifo(steps / "step-00000099")
    before = set(os.listdir(steps)) - {"step-00000030", "step-00000040"}
    resumed = manyhands("train", "--resume", output, "--max-steps", 80)
    assert resumed.returncode == 0, resumed.stderr
    assert "step-foo is not a checkpoint of manyhands and is left alone" in resumed.stderr
    assert before <= set(os.listdir(steps))
    assert victim.read_text() == "years of work"


def test_where_all_checkpoints_are_damaged_the_last_line_says_how(tmp_path):
    output = tmp_path / "run"
    done = manyhands(
        "train", *SMALL, "--max-steps", 20, "--checkpoint-every", "10steps", "--output", output
    )
    assert done.returncode == 0, done.stderr
    for path in output.glob("checkpoints/*/rank-0.safetensors"):
        path.unlink()
        os.mkfifo(path)
    refused = manyhands("train", "--resume", output)
    assert refused.returncode == 2
    last = refused.stderr.strip().splitlines()[-1]
    assert "every checkpoint there is damaged: " in last
    assert last.count("not a regular file") == 2
    assert "holds no checkpoint" not in refused.stderr


def script(folder, code, group=0):
    """Run a Python script, or a group of it under mpiexec."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(code))
    if group:
        line, environment = mpi.mpiexec_command(mpi.find_mpi(), group, [str(path)])
    else:
        line, environment = [sys.executable, str(path)], None
    return ran(line, env=environment, cwd=folder)


def test_fits_in_threads_have_results_of_their_own(tmp_path):
    done = script(
        tmp_path,
        """
        from concurrent.futures import ThreadPoolExecutor
        import manyhands as mh

        def fit(lr):
            given = {"workers": 1, "strategy": "sequential", "epochs": 1, "optimizer": "sgd"}
            return mh.fit("mlp", "blobs", lr=lr, progress=False, kernels="default", **given)

        if __name__ == "__main__":
            with ThreadPoolExecutor(2) as pool:
                rates = [1e-6, 1.0, 1e-5, 0.5]
                results = list(pool.map(fit, rates))
            assert [result.record["config"]["lr"] for result in results] == rates, results
            assert len({result.output for result in results}) == 4
        """,
    )
    assert done.returncode == 0, done.stderr


def test_fits_in_a_loop_under_mpiexec_have_folders_of_their_own(tmp_path):
    done = script(
        tmp_path,
        """
        import manyhands as mh
        folders = {mh.fit("mlp", "blobs", epochs=1, progress=False, kernels="default").output
                   for _ in range(4)}
        assert len(folders) == 4
        """,
        group=2,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 4
    assert not list((tmp_path / "runs").glob("*/.lock"))


def test_a_group_that_is_refused_leaves_nothing(tmp_path):
    line = ["-m", "manyhands", "train", *SMALL, "--init", "nowhere.safetensors"]
    command, environment = mpi.mpiexec_command(
        mpi.find_mpi(), 2, [*line, "--output", str(tmp_path / "run")]
    )
    done = ran(command, env=environment, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "run").exists()
