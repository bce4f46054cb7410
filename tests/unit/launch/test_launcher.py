"""Starting workers: how the job travels, and what a failure becomes."""

import os
import pickle
import signal
import subprocess
import sys
import traceback
from dataclasses import replace
from types import SimpleNamespace

import pytest

from manyhands import errors
from manyhands.config.options import configure
from manyhands.errors import LaunchError
from manyhands.launch import host_watchdog, launcher
from manyhands.launch.failures import (
    ERROR_FILE,
    explain_failure,
    report_failure,
    to_exception,
    write_failure_note,
)
from manyhands.launch.status_board import Board
from manyhands.training.job import JOB_FILE, Job
from manyhands.training.process import existing_group_main
from manyhands.training.run import launch_spec


def a_job(folder, **given):
    return Job(
        config=configure(given),
        model="cnn",
        loss=None,
        data=str(folder),
        output=str(folder),
        name="test",
        command="test",
        launched=0.0,
    )


HYDRA = "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID {} RUNNING AT host"
PRTE = "prterun noticed that process rank {} with PID 99 on node host exited on signal 9"


@pytest.fixture
def board(tmp_path):
    """Three workers that have entered, with pids 100 to 102."""
    board = Board(tmp_path / "board", 3, create=True)
    for rank in range(3):
        board.enter(rank)
        board.rows[rank, 0] = 100 + rank
    return board


@pytest.mark.parametrize(
    ("said", "gone", "dead"),
    [
        (HYDRA.format(101), None, 1),
        (HYDRA.format(100), 1, 1),  # mpiexec had ended rank 0 itself
        (HYDRA.format(77), 2, 2),  # one that had not yet entered
        (HYDRA.format(77), None, None),
        (PRTE.format(2), None, 2),
        ("", 1, 1),
        ("", None, None),
    ],
)
def test_who_died_is_known_by_what_was_seen_and_what_mpiexec_tells(
    tmp_path, board, said, gone, dead
):
    found = explain_failure(tmp_path, board, said, 1, gone)
    who = "a worker" if dead is None else f"rank {dead}"
    assert str(found).startswith(f"{who} died without a word")
    assert found.rank == dead


@pytest.mark.parametrize(
    ("gone", "said", "told"),
    [
        (2, "", "rank 2 died"),
        (None, HYDRA.format(102), "rank 2 died"),
        (None, "", "rank 2 died"),  # nobody was seen to go, but the others have spoken
        (None, HYDRA.format(100), "rank 2 died"),  # mpiexec tells of one that has spoken
        (0, HYDRA.format(100), "rank 1 failed"),  # who went first has spoken
    ],
)
def test_whose_calls_fail_because_another_died_is_not_told_of(tmp_path, board, gone, said, told):
    """Ranks 1 and 0 have noted that MPI failed; rank 2 has said nothing."""
    for rank in (1, 0):
        note = {"rank": rank, "kind": "Exception", "message": "a peer is gone", "exit_code": 1}
        write_failure_note(tmp_path, {**note, "traceback": "mpi4py.MPI.Exception: a peer is gone"})
    assert str(explain_failure(tmp_path, board, said, 1, gone)).startswith(told)


def test_of_several_who_are_silent_none_is_named_for_another(tmp_path, board):
    """Rank 1's MPI failed; nobody saw whether 0 or 2 went first."""
    note = {"rank": 1, "kind": "Exception", "message": "a peer is gone", "exit_code": 1}
    write_failure_note(tmp_path, {**note, "traceback": "mpi4py.MPI.Exception: a peer is gone"})
    found = explain_failure(tmp_path, board, HYDRA.format(101), 1, None)
    assert str(found).startswith("a worker died without a word")
    assert not found.traceback  # such a run may start again


@pytest.mark.parametrize("listed", [None, 0, 1, 2])
def test_who_was_ending_when_mpi_failed_is_named_whoever_is_listed_first(tmp_path, board, listed):
    """Rank 1's MPI failed, and it saw rank 2 without memory; all are dead when it is told."""
    note = {"rank": 1, "kind": "Exception", "message": "a peer is gone", "exit_code": 1}
    note |= {"traceback": "mpi4py.MPI.Exception: a peer is gone", "ending": [1, 2]}
    write_failure_note(tmp_path, note)
    assert str(explain_failure(tmp_path, board, "", 1, listed)).startswith("rank 2 died")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of it on Linux only")
def test_who_is_dead_or_has_no_memory_any_more_is_ending(tmp_path):
    board = Board(tmp_path / "board", 3, create=True)
    line = [sys.executable, "-c", "import time; time.sleep(60)"]
    lives, dead, gone = (subprocess.Popen(line) for _ in range(3))
    for rank, process in enumerate((lives, dead, gone)):
        board.enter(rank)
        board.rows[rank, 0] = process.pid
    dead.kill()
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie
    gone.kill()
    gone.wait()
    try:
        assert board.ending() == [1, 2]
    finally:
        lives.kill()
        lives.wait()
        dead.wait()


def test_a_job_travels(tmp_path):
    job = a_job(tmp_path, workers=3)
    job.write(tmp_path)
    assert Job.read(tmp_path) == job


def test_a_job_finds_the_modules_beside_the_script_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "beside_the_script.py").write_text("def model():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    from beside_the_script import model

    private = tmp_path / "private"
    private.mkdir()
    replace(a_job(tmp_path), model=model).write(private)
    line = "from manyhands.training.job import Job; import sys, pathlib\n"
    line += "print(Job.read(pathlib.Path(sys.argv[1])).model.__module__)"
    read = [sys.executable, "-c", line, str(private)]
    assert subprocess.check_output(read, cwd="/", text=True).strip() == "beside_the_script"


@pytest.mark.parametrize("open_to_others", ["folder", "file"])
def test_a_job_that_others_could_have_written_is_not_read(tmp_path, open_to_others):
    a_job(tmp_path).write(tmp_path)
    path = tmp_path if open_to_others == "folder" else tmp_path / JOB_FILE
    path.chmod(0o777)
    with pytest.raises(LaunchError, match="not private"):
        Job.read(tmp_path)


def test_a_pickle_of_something_else_is_no_job(tmp_path):
    tmp_path.chmod(0o700)
    path = tmp_path / JOB_FILE
    path.write_bytes(pickle.dumps({"not": "a job"}))
    path.chmod(0o600)
    with pytest.raises(LaunchError, match="expected a job"):
        Job.read(tmp_path)


def test_of_several_failures_the_first_is_heard(tmp_path):
    assert report_failure(tmp_path, 1, ValueError("first"))
    assert not report_failure(tmp_path, 0, ValueError("second"))
    assert '"rank": 1' in (tmp_path / ERROR_FILE).read_text()


def test_a_failure_comes_back_as_what_it_was():
    note = {"rank": 1, "message": "lr is nan", "traceback": ""}
    assert isinstance(to_exception({**note, "kind": "ConfigError"}), errors.ConfigError)
    assert isinstance(to_exception({**note, "kind": "DivergedError"}), errors.DivergedError)
    other = to_exception({**note, "kind": "KeyError", "traceback": "Traceback …"})
    assert isinstance(other, errors.WorkerError)
    assert (other.rank, other.traceback) == (1, "Traceback …")
    assert "rank 1" in str(other)


def test_a_failure_in_the_users_own_code_names_the_place(tmp_path):
    script = tmp_path / "own.py"
    script.write_text("import json\ndef forward(x):\n    return json.loads(x)\n")
    space = {}
    exec(compile(script.read_text(), str(script), "exec"), space)
    with pytest.raises(ValueError, match="char 0") as found:
        space["forward"]("nonsense")
    trace = "".join(traceback.format_exception(found.value)).replace(__file__, errors.__file__)
    note = {"rank": 1, "message": str(found.value), "kind": "ValueError", "traceback": trace}
    assert str(to_exception(note)).endswith(f"({script}, line 3, in forward)")
    elsewhere = {**note, "traceback": trace.replace(str(script), errors.__file__)}
    assert str(to_exception(elsewhere)).endswith("(char 0)")


def test_the_board_shows_who_is_where(tmp_path):
    board = Board(tmp_path / "board", 3, create=True)
    other = Board(tmp_path / "board", 3)
    other.enter(1)
    other.steps(1, 100)
    other.note(1, 7, "exchange")
    (note,) = board.read()
    assert (note.rank, note.step, note.steps, note.operation) == (1, 7, 100, "exchange")


def test_a_second_one_who_fails_while_the_first_clears_up_says_nothing(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(existing_group_main, "_LATER", 0.0)
    folder = tmp_path / "host"
    folder.mkdir()

    def one(rank):
        return SimpleNamespace(rank=rank, lost=lambda error: False)

    def second(path):
        for file in path.iterdir():  # some is gone, some is not, when the other comes
            file.unlink()
        existing_group_main._print_failure(folder, one(1), ValueError("the same"))

    existing_group_main._print_failure(folder, one(0), ValueError("the story"))
    second(host_watchdog.claim_folder(folder))
    said = capsys.readouterr().err
    assert "[rank 0]" in said
    assert "[rank 1]" not in said


JOINED = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from manyhands.training.process import existing_group_main
from manyhands.training.run import launch_spec

def run_job(*_):
    os.kill(os.getpid(), signal.SIGUSR1)  # our stack is told, and we go on
    {inside}

existing_group_main.run_job = run_job
made = SimpleNamespace(config=SimpleNamespace(timeout=60.0), output=sys.argv[1])
group = SimpleNamespace(size=2, rank=0, barrier=lambda: None, release=lambda: None)
group.gather = lambda value: [value, value]
existing_group_main.join(made, group, Path(sys.argv[1]), leader=True, release=lambda: None)
os.kill(os.getpid(), signal.SIGUSR1)
print("lives")
"""


@pytest.mark.parametrize(
    ("inside", "code", "printed"),
    [
        ('signal.signal(signal.SIGUSR1, lambda *_: print("mine"))', 0, ["mine", "lives"]),
        ("signal.signal(signal.SIGUSR1, signal.SIG_IGN)", 0, ["lives"]),
        ("pass", -signal.SIGUSR1, []),
    ],
)
def test_a_signal_that_a_users_code_takes_during_a_run_stays_its_own(
    tmp_path, inside, code, printed
):
    line = [sys.executable, "-c", JOINED.format(inside=inside), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (code, printed), done.stderr
    assert "in run_job" in done.stderr


@pytest.mark.parametrize(
    ("given", "born"),
    [
        ({}, True),
        ({"forks": False}, False),  # as where the file system knows no sockets
        ({"mpi": "openmpi"}, True),
        ({"on_failure": "continue"}, True),
        ({"mpiexec_options": "-bind-to core"}, False),  # which may be about each process
        ({"hosts": "here,there"}, False),
    ],
)
def test_workers_are_forked_where_pip_s_mpi_starts_them_all_on_one_host(tmp_path, given, born):
    given = dict(given)
    forks = given.pop("forks", True)
    line, _ = launcher.group_command(
        launch_spec(a_job(tmp_path, **given).config), tmp_path, forks=forks
    )
    assert (str(launcher.FORK_CLIENT) in line) == born
    assert ("manyhands.training.process.mpi_main" in line) != born
