"""SIGTERM, SIGINT and SIGHUP in every phase of a command: exit codes, and nothing left behind."""

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from processes import processes
from running import MANYHANDS, PATIENCE, eventually, ran, record

import manyhands as mh
from manyhands.launch.status_board import Board
from manyhands.testing import Faults

pytestmark = pytest.mark.usefixtures("nobody_is_left")
SMALL = ["--data", "blobs", "--model", "mlp", "--kernels", "default"]
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def started(line, **options):
    """Start a command whose output is read."""
    return subprocess.Popen(
        list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def struck(run, signum):
    """Send a signal and wait for the end; returns what the command still wrote to stderr."""
    try:
        run.send_signal(signum)
        return run.communicate(timeout=PATIENCE)[1]
    finally:
        run.kill()


def left_behind():
    """Return what is in the temporary folder."""
    return os.listdir(os.environ["TMPDIR"])


def until(run, text):
    """Read stderr up to the line that has `text`; returns that line."""
    for line in run.stderr:
        if text in line:
            return line
    raise AssertionError(f"{text!r} was never written; exit {run.wait()}")


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_while_measuring_ends_the_command(tmp_path, signum):
    output = tmp_path / "run"
    run = started([*MANYHANDS, "train", *SMALL, "--workers", "auto", "--output", output])
    until(run, "measuring 1 worker")
    said = struck(run, signum)
    assert run.returncode == 128 + signum
    assert "measuring" not in said
    assert "Traceback" not in said
    assert not output.exists()
    assert eventually(lambda: not left_behind(), 30), left_behind()


@pytest.mark.parametrize("signum", SIGNALS[:2])
def test_a_signal_while_workers_measure_ends_a_prediction(tmp_path, signum):
    run = started([*MANYHANDS, "predict", *SMALL, "--output", tmp_path / "prediction"])
    until(run, "measuring 1 worker")
    assert eventually(boards)  # its workers have been started
    said = struck(run, signum)
    assert run.returncode == 128 + signum
    assert "measuring" not in said
    assert not (tmp_path / "prediction").exists()
    assert eventually(lambda: not left_behind(), 30), left_behind()


def boards():
    return list(Path(os.environ["TMPDIR"]).glob("manyhands-*/*/board"))


def training(workers):
    """Say whether that many workers have done their first steps."""
    notes = [note for board in boards() for note in Board(board, workers).read()]
    return len(notes) == workers and all(note.step > 3 for note in notes)


def test_a_script_gets_keyboard_interrupt_while_measuring(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import manyhands as mh\n"
        "try:\n"
        "    mh.fit('mlp', 'blobs', kernels='default', workers='auto', output='run')\n"
        "except Exception:\n"
        "    raise SystemExit('swallowed') from None\n"
    )
    run = started([sys.executable, script], cwd=tmp_path)
    until(run, "measuring 1 worker")
    assert eventually(boards)
    said = struck(run, signal.SIGINT)
    assert run.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in said
    assert not left_behind()


LASTING = """
import time
from pathlib import Path


class Lasting:
    def on_end(self, record):
        Path("ended").touch()
        while not Path("go").exists():
            time.sleep(0.01)
"""


def lasting(folder, *more):
    """Start a run whose record and model are written, and which does not end until "go" is there.

    Returns when it has come that far.
    """
    (folder / "mine.py").write_text(LASTING)
    line = [*MANYHANDS, "train", *SMALL, "--epochs", 1, "--mpi", "mpich", "--output", "run"]
    run = started([*line, "--callbacks", "mine:Lasting", *more], cwd=folder)
    assert eventually(lambda: (folder / "ended").exists())
    return run


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_after_the_last_step_is_not_lost(tmp_path, signum):
    run = lasting(tmp_path)
    run.send_signal(signum)
    assert eventually(lambda: any(Board(board, 2).stop_signal() for board in boards()))
    (tmp_path / "go").touch()
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 128 + signum
    assert "the run had finished" in said
    assert record(tmp_path / "run")["status"] == "finished"
    assert (tmp_path / "run/model.safetensors").exists()


def helpers(name):
    """Return the processes of this test's runs that have this name."""
    place = f"TMPDIR={os.environ['TMPDIR']}".encode()
    named = processes(lambda comm: comm.startswith(name.encode()), "comm")
    return [pid for pid in processes(lambda text: place in text, "environ") if pid in named]


def test_a_run_whose_mpiexec_fails_after_the_record_has_finished(tmp_path):
    run = lasting(tmp_path)
    (proxy,) = helpers("hydra_pmi_proxy")
    os.kill(proxy, signal.SIGKILL)
    (tmp_path / "go").touch()
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, said
    assert record(tmp_path / "run")["status"] == "finished"


def test_a_stopped_helper_of_mpiexec_does_not_outlive_the_run(tmp_path):
    line = [*MANYHANDS, "train", "--epochs", 500, "--mpi", "mpich", "--output", tmp_path / "run"]
    run = started([*line, "--checkpoint-every", "10000steps"])
    assert eventually(lambda: training(2))
    (proxy,) = helpers("hydra_pmi_proxy")
    os.kill(proxy, signal.SIGSTOP)
    try:
        said = struck(run, signal.SIGTERM)
        assert run.returncode == 143
        assert "--resume" in said
        assert len(list((tmp_path / "run/checkpoints").iterdir())) == 1
        assert eventually(lambda: not helpers("hydra"), 30)
        assert not left_behind()
    finally:
        if proxy in helpers("hydra"):
            os.kill(proxy, signal.SIGKILL)


@pytest.mark.parametrize("signum", SIGNALS)
@pytest.mark.parametrize("phase", ["importing", "training"])
def test_nothing_of_hogwild_outlives_the_command(tmp_path, phase, signum):
    line = [*MANYHANDS, "train", *SMALL, "--strategy", "hogwild", "--epochs", 5000]
    run = started([*line, "--workers", 2, "--output", tmp_path / "run"])
    reached = {"importing": fork_servers, "training": lambda: training(2)}[phase]
    assert eventually(reached)
    run.send_signal(signum)
    try:
        run.wait(PATIENCE)  # of the command alone, not of all that have its output open
        assert not helpers("")
        assert run.returncode == 128 + signum
        assert not left_behind()
    finally:
        run.kill()
        run.communicate()


def fork_servers():
    """Return the fork servers of this test's runs."""
    servers = processes(lambda line: b"multiprocessing.forkserver" in line)
    return [pid for pid in helpers("") if pid in servers]


def test_a_closed_terminal_ends_the_run_at_a_checkpoint(tmp_path):
    line = [*MANYHANDS, "train", *SMALL, "--epochs", "5000", "--checkpoint-every", "100000steps"]
    line += ["--workers", "2", "--output", str(tmp_path / "run")]
    pid, terminal = pty.fork()
    if not pid:
        os.execv(line[0], line)
    os.set_blocking(terminal, False)

    def trains():
        with suppress(BlockingIOError):
            os.read(terminal, 1 << 16)  # a full terminal would stop the command
        return training(2)

    ended, status = 0, 0
    try:
        assert eventually(trains)
        os.close(terminal)
        ended, status = eventually(lambda: (done := os.waitpid(pid, os.WNOHANG))[0] and done)
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert record(tmp_path / "run")["status"] == "interrupted"
    assert len(list((tmp_path / "run/checkpoints").glob("step-*"))) == 1
    assert eventually(lambda: not helpers(""), 30)
    assert not left_behind()


def test_a_run_under_nohup_ignores_the_end_of_its_terminal(tmp_path):
    (tmp_path / "mine.py").write_text(LASTING)
    line = [*MANYHANDS, "train", *SMALL, "--epochs", 1, "--output", "run"]
    ignoring = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    line += ["--callbacks", "mine:Lasting"]
    run = started(line, cwd=tmp_path, preexec_fn=ignoring)
    assert eventually(lambda: (tmp_path / "ended").exists())
    run.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, said


# Runs the command line with one function that says "paused" and then only waits.
PAUSING = """
import importlib, sys, time

def pause(*_, **__):
    print("paused", file=sys.stderr, flush=True)
    time.sleep(600)

class Entered:
    def __init__(self, *_, **__):
        pass
    __enter__ = pause
    def __exit__(self, *_):
        pass

kind, module, name = sys.argv[1:4]
sys.argv[1:4] = []
setattr(importlib.import_module(module), name, Entered if kind == "enter" else pause)
importlib.import_module("manyhands.__main__").main()
"""
PHASES = {
    "training, data stored": ("call", "manyhands.training.preflight", "check", ["train", *SMALL]),
    "auditing": ("call", "manyhands.experiments.audit.run", "fit", ["audit"]),
    "dividing": (
        "call",
        "manyhands.training.process.data",
        "make_plan",
        ["partition", "--data", "blobs"],
    ),
    "reporting": ("call", "manyhands.report", "build", ["report", "folder"]),
    "comparing": (
        "call",
        "manyhands.experiments.sweep.run",
        "fit",
        ["compare", *SMALL, "--output", "sweep"],
    ),
}


@pytest.mark.parametrize("signum", SIGNALS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_outside_of_training_ends_the_command(tmp_path, phase, signum):
    kind, module, name, line = PHASES[phase]
    run = started([sys.executable, "-c", PAUSING, kind, module, name, *line], cwd=tmp_path)
    until(run, "paused")
    said = struck(run, signum)
    assert run.returncode == 128 + signum
    name = "interrupted" if signum == signal.SIGINT else f"stopped by {signum.name}"
    assert said.splitlines()[-1] == f"manyhands: {name}"
    assert "Traceback" not in said
    assert eventually(lambda: not left_behind(), 30), left_behind()


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_during_imports_leaves_no_traceback(tmp_path, signum):
    (tmp_path / "cyclopts.py").write_text(
        "import sys, time\nprint('importing', file=sys.stderr, flush=True)\ntime.sleep(600)\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    run = started([*MANYHANDS, "--help"], env={**os.environ, "PYTHONPATH": path})
    until(run, "importing")
    said = struck(run, signum)
    assert run.returncode == 128 + signum
    assert len(said.splitlines()) == 1
    assert said.startswith("manyhands: ")


# Python runs this as it starts; the process then gets SIGINT as it imports its n-th module.
INTERRUPTING = """
import os, sys

imported = []

def interrupt(event, args):
    if event == "import" and "manyhands" in sys.modules and args[0] != "manyhands.__main__":
        imported.append(args[0])
        if len(imported) == int(os.environ["AT_IMPORT"]):
            os.kill(os.getpid(), 2)

sys.addaudithook(interrupt)
"""
SCRIPT = "import sys; from manyhands.__main__ import main; sys.exit(main())"  # as pip writes it


@pytest.mark.parametrize("line", [["-m", "manyhands"], ["-c", SCRIPT]], ids=["module", "script"])
def test_an_interrupt_during_the_first_imports_leaves_no_traceback(tmp_path, line):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    for number in [*range(1, 16), 40, 80]:
        environment = {**os.environ, "PYTHONPATH": path, "AT_IMPORT": str(number)}
        done = ran([sys.executable, *line, "--help"], env=environment)
        assert (done.returncode, done.stderr) == (130, "manyhands: interrupted\n"), number


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_while_waiting_to_restart_ends_the_run(tmp_path, signum):
    output = tmp_path / "run"
    line = [*MANYHANDS, "train", *SMALL, "--epochs", 50, "--on-failure", "restart"]
    with Faults().kill(rank=1, step=25, phase="exchange"):
        run = started([*line, "--checkpoint-every", "10steps", "--output", output])
        until(run, "starting again from step")
        said = struck(run, signum)
    assert run.returncode == 128 + signum, said
    found = record(output)
    assert found["status"] == "interrupted"
    assert "rank 1" in found["story"][0]["failed"]
    assert eventually(lambda: not [n for n in left_behind() if "faults" not in n], 30)


def test_a_signal_ends_a_benchmark_and_its_processes(tmp_path):
    line = ["allreduce", "--workers", "2", "--sizes", "1KB..64MB", "--mpi", "mpich"]
    run = started([*MANYHANDS, *line, "--output", tmp_path / "bench"])
    assert eventually(lambda: helpers("hydra_pmi_proxy"))
    said = struck(run, signal.SIGTERM)
    assert run.returncode == 143
    assert "stopped by SIGTERM" in said
    assert eventually(lambda: not helpers(""), 30)
    assert not left_behind()


def test_a_killed_launcher_leaves_no_copy_of_the_data(tmp_path):
    run = started([*MANYHANDS, "train", *SMALL, "--epochs", 5000, "--output", tmp_path / "run"])
    assert eventually(lambda: training(2))
    assert left_behind()
    run.kill()
    run.communicate()
    assert eventually(lambda: not left_behind(), 60), left_behind()


def test_handlers_are_the_callers_again_after_a_run(tmp_path):
    before = [signal.getsignal(signum) for signum in SIGNALS]
    mh.fit("mlp", "blobs", kernels="default", epochs=1, output=str(tmp_path / "run"))
    assert [signal.getsignal(signum) for signum in SIGNALS] == before
