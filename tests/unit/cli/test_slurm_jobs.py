"""A run as a batch job: what sbatch is called with, and how the job is followed; no Slurm here."""

import os
import stat
import sys

import pytest

from manyhands.cli import slurm
from manyhands.cli.app import main
from manyhands.config.options import configure, flatten
from manyhands.errors import ConfigError, LaunchError
from manyhands.training import resume
from manyhands.worker.checkpoint.folder_layout import Checkpoint


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Programs under the names of Slurm's, on the path; give each its shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in ("_ASK", "_POLL"):
        monkeypatch.setattr(slurm, name, 0.01)

    def put(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(stat.S_IRWXU)

    for name in ("srun", "scancel"):
        put(name, "exit 0")
    put("squeue", "echo RUNNING")
    put("sbatch", f'for a in "$@"; do echo "[$a]"; done > {tmp_path}/words; echo 7')
    return put


@pytest.fixture
def submitted(monkeypatch):
    batches = []
    monkeypatch.setattr(slurm, "submit", lambda batch: batches.append(batch) or 0)
    return batches


def by_slurm(given, **more):
    words = {"asked": True, "nodes": None, "options": None, **more}
    return slurm.train(given, [], **words)


@pytest.mark.parametrize(("words", "count"), [(["--workers", "3"], 3), ([], 2)])
def test_the_number_of_workers_reaches_the_job(submitted, monkeypatch, words, count):
    monkeypatch.setattr(sys, "argv", ["manyhands", "train"])
    with pytest.raises(SystemExit) as ended:
        main(["train", "--data", "blobs", "--slurm", *words])
    assert ended.value.code == 0
    (batch,) = submitted
    assert f"#SBATCH --ntasks={count}" in batch.script
    assert ("--workers 3" in batch.script) == (count == 3)


@pytest.mark.parametrize("workers", ["auto", "cores"])
def test_workers_that_this_machine_would_choose_are_refused(submitted, workers):
    with pytest.raises(ConfigError, match="not Slurm's nodes"):
        by_slurm({"workers": workers})


@pytest.mark.parametrize(("given", "count"), [({}, 3), ({"workers": 5}, 5)])
def test_a_run_that_goes_on_is_the_one_of_its_checkpoint(
    submitted, monkeypatch, tmp_path, given, count
):
    before = flatten(configure({"strategy": "sync", "workers": 3, "name": "mine"}))
    about = {"options": before, "settled": {"kernels": "default"}, "step": 0, "epoch": 0}
    about |= {"processes": 3, "layers": []}
    found = Checkpoint(folder=tmp_path, about=about)
    monkeypatch.setattr(resume.checkpoints, "newest", lambda folder, say: found)
    by_slurm({"resume": str(tmp_path), **given})
    (batch,) = submitted
    assert (batch.config.workers, batch.config.name) == (count, "mine")
    assert f"--ntasks={count}" in batch.script
    assert ("workers" in " ".join(batch.arguments)) == bool(given)
    assert batch.folder == tmp_path


def test_what_the_user_wrote_is_argument_of_sbatch_and_never_a_line_of_the_script(
    programs, tmp_path
):
    (tmp_path / "run").mkdir()
    programs("squeue", f"echo 4 > {tmp_path}/run/slurm.exit; echo RUNNING")
    given = {"name": "a\ntouch b", "output": str(tmp_path / "run")}
    assert by_slurm(given, options="--comment 'two words' --time=3") == 4
    words = (tmp_path / "words").read_text()
    assert words.startswith("[--job-name=a\ntouch b]\n[--comment]\n[two words]\n[--time=3]\n")
    script = (tmp_path / "run/slurm.sh").read_text()
    assert "two words" not in script
    assert [line for line in script.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --ntasks=2",
        "#SBATCH --cpus-per-task=1",
    ]


@pytest.mark.parametrize(
    "answer", ["exit 0", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"]
)
def test_a_job_that_is_gone_for_long_was_ended_by_slurm(programs, monkeypatch, tmp_path, answer):
    monkeypatch.setattr(slurm, "_LATE", 0.05)
    programs("squeue", answer)
    with pytest.raises(LaunchError, match="job 7 was ended by Slurm"):
        by_slurm({"output": str(tmp_path / "run")})


def test_a_job_that_runs_before_its_number_is_known_is_cancelled(programs, monkeypatch, tmp_path):
    programs("sbatch", "kill $PPID; sleep 0.2; echo 7")  # SIGTERM, while it submits
    programs("scancel", f"echo $1 >> {tmp_path}/cancelled")
    programs("squeue", "exit 0")
    with pytest.raises(LaunchError, match="job 7 was ended by Slurm") as ended:
        by_slurm({"output": str(tmp_path / "run")})
    assert ended.value.exit_code == 143
    assert (tmp_path / "cancelled").read_text() == "7\n"


def test_an_exit_code_that_shows_late_is_found(programs, tmp_path):
    count = f"echo >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -lt 4 ]"
    programs("squeue", f"{count} || echo 5 > {tmp_path}/run/slurm.exit")
    assert by_slurm({"output": str(tmp_path / "run")}) == 5


def test_a_slurm_that_does_not_answer_says_nothing_about_the_job(programs, monkeypatch, tmp_path):
    monkeypatch.setattr(slurm, "_LATE", 0.0)
    count = f"echo >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -lt 4 ]"
    late = f"echo 5 > {tmp_path}/run/slurm.exit"
    programs("squeue", f"{count} || {late}; echo 'Unable to contact slurm controller' >&2; exit 1")
    assert by_slurm({"output": str(tmp_path / "run")}) == 5


def test_a_quote_that_is_not_closed_is_refused_before_anything_is_written(programs, tmp_path):
    with pytest.raises(ConfigError, match=r"sbatch_options is .*No closing quotation"):
        by_slurm({"output": str(tmp_path / "run")}, options="--comment 'two words")
    assert not (tmp_path / "run").exists()


def test_a_job_does_not_go_where_the_user_s_files_are(programs, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "model.safetensors").write_text("years of work")
    with pytest.raises(ConfigError, match=r"holds other things \(model\.safetensors\)"):
        by_slurm({"output": str(own)})
    (own / "model.safetensors").unlink()
    (own / "slurm.sh").write_text("years of work")
    with pytest.raises(ConfigError, match=r"slurm\.sh .*not written by manyhands"):
        by_slurm({"output": str(own)})
    assert (own / "slurm.sh").read_text() == "years of work"


def test_two_jobs_within_a_second_have_two_folders(submitted):
    for _ in range(2):
        by_slurm({"workers": 2})
    assert submitted[0].folder != submitted[1].folder
