"""The command line and `fit` as a user meets them: real processes, real failures, no orphans."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from running import (
    FAILING,
    MANYHANDS,
    PATIENCE,
    POISONED,
    anybody_alive,
    eventually,
    manyhands,
    ran,
    record,
    workers_alive,
)

import manyhands as mh
from manyhands.launch.status_board import Board
from manyhands.testing import Faults

pytestmark = pytest.mark.usefixtures("nobody_is_left")
SMALL = ["--data", "blobs", "--model", "mlp", "--epochs", "2"]


def training(workers):
    """Return whether that many workers of this test have done their first steps."""
    boards = Path(os.environ["TMPDIR"]).glob("manyhands-*/*/board")
    notes = [note for board in boards for note in Board(board, workers).read()]
    return len(notes) == workers and all(note.step > 3 for note in notes)


def asked(workers):
    """Return whether that many workers of this test were asked to stop."""
    boards = Path(os.environ["TMPDIR"]).glob("manyhands-*/*/board")
    return any(Board(board, workers).stop_signal() for board in boards)


def test_training_leaves_the_promised_files_and_prints_json(tmp_path):
    done = manyhands("train", *SMALL, "--workers", 2, "--output", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["accuracy"] > 0.9
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"run.json", "steps.jsonl", "rank-0.log", "rank-1.log", "model.safetensors"}
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["status"] == "finished"
    assert record["processes"] == 2
    assert [epoch["epoch"] for epoch in record["epochs"]] == [1, 2]
    assert all(worker["compute"] > 0 for worker in record["workers"])
    steps = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").read_text().splitlines()]
    assert len(steps) == 2 * record["result"]["steps"]


def test_a_preset_is_recorded_with_its_options_and_kept_by_resume(tmp_path):
    run, keep = tmp_path / "run", ("--checkpoint-every", "5steps", "--json")
    begin = (*SMALL, "--workers", 1, "--preset", "one-cycle", "--output", run, *keep)
    assert manyhands("train", *begin, "--max-steps", 5).returncode == 0
    expected = {"preset": "one-cycle", "batch_size": 192, "lr": 0.06}
    expected |= {"schedule": "linear", "warmup": 0.1}
    for again in ((), ("--preset", "one-cycle")):
        done = manyhands("train", "--resume", run, "--max-steps", 10, *again, "--json")
        assert done.returncode == 0, done.stderr
        config = json.loads((run / "run.json").read_text())["config"]
        assert {name: config[name] for name in expected} == expected
    refused = manyhands("train", "--resume", run, "--preset", "none")
    assert refused.returncode == 2
    assert "preset is 'none', but the run in" in refused.stderr


@pytest.mark.parametrize("strategy", ["sync", "server"])
def test_a_log_shows_a_line_an_epoch(tmp_path, strategy):
    run = ("train", *SMALL, "--strategy", strategy, "--workers", 2, "--json")
    done = manyhands(*run, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stopped"] == "epochs"
    first, *_, last = done.stderr.splitlines()
    assert first == f"{strategy} × 2: starting"
    pattern = r"epoch 2 of 2: [\d.]+ s, loss [\d.e-]+(, test .*)?, [\d,]+ examples/s"
    assert re.fullmatch(pattern, last)
    quiet = manyhands(*run, "--output", tmp_path / "quiet", "--quiet")
    assert (quiet.returncode, quiet.stderr) == (0, "")


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_both_mpis_train_alike(tmp_path, mpi):
    done = manyhands(
        "train", *SMALL, "--workers", 3, "--mpi", mpi, "--output", tmp_path / "run", "--json",
        "--quiet",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.9
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wrokers", "2"], "--workers"),
        (["--strategy", "snyc"], "sync"),
        (["--lr", "nan"], "lr is nan"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--workers", "9", "--batch-size", "4"], "one example per worker"),
        (["--model", "nowhere:factory"], "no module 'nowhere'"),
        (["--data", "mnits"], "mnist"),
        (["--limit", "3", "--workers", "5"], "5"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, arguments, message):
    done = manyhands("train", *arguments, "--output", "run", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"schema": 1, "status": "finished"}')
    done = manyhands("train", *SMALL, "--output", tmp_path)
    assert done.returncode == 2
    assert "already holds a run" in done.stderr


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    done = manyhands("train", *SMALL, "--output", tmp_path / "file" / "run")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


FAMILY = ("sync", "averaging", "gossip", "server", "hogwild")


@pytest.mark.parametrize("strategy", FAMILY)
def test_an_error_on_one_rank_ends_all_with_that_traceback_once(tmp_path, strategy):
    (tmp_path / "mine.py").write_text(FAILING)
    given = ["--data", "blobs", "--model", "mine:Model", "--kernels", "default"]
    done = manyhands("train", "--strategy", strategy, *given, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: no hands on this rank") == 2  # traceback and summary
    assert done.stderr.count("Traceback") == 1
    assert "[rank 1]" in done.stderr
    assert "[rank 0]" not in done.stderr


def stop_at_five(folder, *line):
    """Let worker 1's fifth loss be no number; returns how many batches each worker began."""
    (folder / "mine.py").write_text(POISONED)
    given = ["--data", "blobs", "--model", "mine:Model", "--kernels", "default"]
    done = manyhands("train", *given, "--strategy", *line, "--output", "run", cwd=folder)
    assert done.returncode == 1
    assert "step 5 of worker 1" in done.stderr
    assert "smaller learning rate" in done.stderr
    assert "Traceback" not in done.stderr
    assert "step 5 of worker 1" in record(folder / "run")["error"]
    assert not list((folder / "run").glob("*.safetensors"))
    return [int((folder / f"calls-{rank}").read_text().split()[-1]) for rank in (0, 1)]


OWN = """
from dataclasses import dataclass

import manyhands as mh


@dataclass(frozen=True)
class Explodes(mh.Strategy):
    def step(self, worker, batch):
        worker.update(worker.gradient(batch))
        worker.params.mul_(1e30)

    def consensus(self, worker):
        return worker.params
"""


def test_a_strategy_of_your_own_that_diverges_is_named_with_its_place(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    given = ["--data", "blobs", "--model", "logistic", "--workers", 2, "--strategy"]
    done = manyhands("train", *given, "mine.py:Explodes", "--output", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert "smaller learning rate" in done.stderr
    told = " ".join(done.stderr.split())
    assert re.search(r"the strategy is Explodes \(mine\.py:[89]\)", told), told
    assert "; try: manyhands check mine.py:Explodes" in told
    assert "Traceback" not in done.stderr


NAMESAKES = """
from dataclasses import dataclass

import manyhands as mh


@dataclass(frozen=True)
class Plain(mh.Strategy):
    def step(self, worker, batch):
        gradient = worker.gradient(batch)
        worker.allreduce(gradient)
        worker.update(gradient)

    def consensus(self, worker):
        return worker.params


@dataclass(frozen=True)
class Namesakes(Plain):
    parts: int = 3
    stages: int = 2
    allreduce: str = "tree"
"""


def test_a_strategy_of_your_own_may_have_options_named_as_ours(tmp_path):
    (tmp_path / "mine.py").write_text(NAMESAKES)
    given = ["--data", "blobs", "--model", "logistic", "--kernels", "default", "--max-steps", 5]
    for name in ("Plain", "Namesakes"):
        line = ["--strategy", f"mine.py:{name}", "--workers", 2, "--output", name]
        done = manyhands("train", *given, *line, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    plain, other = (tmp_path / name / "model.safetensors" for name in ("Plain", "Namesakes"))
    assert plain.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    "line",
    [["sync"], ["averaging", "--period", 1], ["gossip"], ["server", "--staleness", 0]],
    ids=lambda line: line[0],
)
def test_a_loss_that_is_not_finite_stops_all_and_names_rank_and_step(tmp_path, line):
    """Where workers wait for each other, nobody begins the step after it."""
    first, second = stop_at_five(tmp_path, *line)
    assert second == 5
    assert first in (4, 5)  # it may have been ended before it began its fifth


@pytest.mark.parametrize("strategy", ["averaging", "server", "hogwild"])
def test_a_loss_that_is_not_finite_ends_those_who_do_not_wait_too(tmp_path, strategy):
    assert stop_at_five(tmp_path, strategy)[1] == 5


@pytest.fixture
def long_run(tmp_path):
    """A run of many epochs whose two workers are at it."""
    output = tmp_path / "run"
    line = [*MANYHANDS, "train", "--epochs", "500", "--output", str(output)]
    run = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: training(2))
        yield run
    finally:
        run.kill()
        run.communicate()


OWN_ENDS = """
import atexit
import os
from pathlib import Path

import numpy as np
from torch import nn

RANK = os.environ.get("PMI_RANK", "nobody")  # the launcher imports this, too
drawn = open(f"drawn-{RANK}", "w")
drawn.write(str(np.random.rand()))
atexit.register(Path(f"left-{RANK}").touch)


def model():
    return nn.Linear(20, 4)
"""


def test_forked_workers_differ_in_chance_and_leave_as_others_do(tmp_path):
    """They come from one process, and end without Python being taken apart."""
    (tmp_path / "own_ends.py").write_text(OWN_ENDS)
    given = ["--data", "blobs", "--max-steps", "2", "--output", tmp_path / "run"]
    done = manyhands("train", "--model", "own_ends:model", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    drawn = [(tmp_path / f"drawn-{rank}").read_text() for rank in range(2)]
    assert all(drawn)
    assert drawn[0] != drawn[1]
    assert all((tmp_path / f"left-{rank}").exists() for rank in range(2))


def test_a_killed_worker_ends_the_run(tmp_path, long_run):
    os.kill(max(workers_alive()), signal.SIGKILL)
    _, said = long_run.communicate(timeout=PATIENCE)
    assert long_run.returncode == 1
    assert "died" in said
    assert record(tmp_path / "run")["status"] == "failed"


def test_a_killed_launcher_takes_the_workers_along(long_run):
    long_run.kill()
    long_run.wait()
    assert eventually(lambda: not anybody_alive(), 60)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_run_between_two_steps_and_it_can_go_on(tmp_path, signum):
    output = tmp_path / "run"
    line = [*MANYHANDS, "train", "--epochs", "500", "--output", str(output)]
    line += ["--checkpoint-every", "10000steps"]
    run = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: training(2))
        run.send_signal(signum)
        _, said = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
    assert run.returncode == 128 + signum
    assert "--resume" in said
    assert "Traceback" not in said
    (checkpoint,) = (output / "checkpoints").iterdir()
    step = int(checkpoint.name.removeprefix("step-"))
    done = manyhands("train", "--resume", output, "--max-steps", step + 8, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == step + 8


def test_ctrl_c_reaches_a_script_as_everywhere_in_python(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import manyhands as mh\n"
        "try:\n"
        f"    mh.fit(epochs=500, workers=2, output={str(tmp_path / 'run')!r}, progress=False,\n"
        "           checkpoint_every='10000steps')\n"
        "except Exception:\n"
        "    raise SystemExit('swallowed') from None\n"
    )
    run = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: training(2))
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
    assert run.returncode == -signal.SIGINT
    assert "KeyboardInterrupt: stopped after step" in said
    assert "--resume" in said
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1


def first_step(folder):
    """Return what notes which modules a worker's first step imports.

    It is both what changes the batches, when the step has begun, and who hears that it is over.
    """

    class Noting:
        def __call__(self, batch):
            import os
            import sys

            before = folder / f"before-{os.getpid()}"
            if not before.exists():
                before.write_text(" ".join(sys.modules))
            return batch

        def on_step(self, about):
            import os
            import sys

            before = folder / f"before-{os.getpid()}"
            if about["step"] == 1:
                new = set(sys.modules) - set(before.read_text().split())
                (folder / "new").write_text(" ".join(new))

    return Noting()


@pytest.mark.parametrize("strategy", ["sync", "pipeline"])
def test_nothing_is_imported_in_a_first_step(tmp_path, strategy):
    """It would count as training, and be another time in each run of a sweep."""
    noting = first_step(tmp_path)
    stages = {"stages": 2, "workers": 1} if strategy == "pipeline" else {"workers": 2}
    given = {"epochs": 1, "kernels": "default", "output": str(tmp_path / "run"), **stages}
    mh.fit("mlp", "blobs", strategy=strategy, augment=noting, callbacks=[noting], **given)
    assert (tmp_path / "new").read_text().split() == []


def test_a_second_signal_ends_at_once_and_is_no_failure_to_restart_from(tmp_path):
    line = [*MANYHANDS, "train", "--epochs", "500"]
    line += ["--output", str(tmp_path / "run"), "--checkpoint-every", "10000steps"]
    run = subprocess.Popen([*line, "--on-failure", "restart"], stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: training(2))
        os.kill(max(workers_alive()), signal.SIGSTOP)  # so that the first cannot be obeyed
        run.send_signal(signal.SIGINT)
        assert eventually(lambda: asked(2))  # two that come at once are one
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
    assert run.returncode == 130


def test_going_on_past_the_last_step_does_no_more_steps(tmp_path):
    output = tmp_path / "run"
    more = ["--max-steps", 20, "--checkpoint-every", "10steps", "--output", output]
    assert manyhands("train", *SMALL, *more).returncode == 0
    (output / "run.json").unlink()
    done = manyhands("train", "--resume", output, "--json")
    assert json.loads(done.stdout)["steps"] == 20
    refused = manyhands("train", "--resume", output, "--max-steps", 5)
    assert refused.returncode == 2
    assert "already at 20" in refused.stderr


PATIENT = """
import time
from pathlib import Path


class Patient:
    def on_step(self, step):
        while step["step"] == 19 and not Path("run/checkpoints/step-00000010").exists():
            time.sleep(0.01)
"""


def test_a_full_disk_during_a_checkpoint_is_a_clear_end(tmp_path):
    (tmp_path / "mine.py").write_text(PATIENT)
    with Faults().fail_write(rank=0, step=20, phase="checkpoint"):
        more = ["--checkpoint-every", "10steps", "--output", tmp_path / "run"]
        done = manyhands("train", *SMALL, *more, "--callbacks", "mine:Patient", cwd=tmp_path)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert [p.name for p in (tmp_path / "run/checkpoints").glob("step-*")] == ["step-00000010"]


def test_a_dead_worker_is_replaced_and_the_end_is_the_same(tmp_path):
    options = {"model": "mlp", "data": "blobs", "epochs": 3, "workers": 2, "kernels": "default"}
    options |= {"checkpoint_every": "10steps", "on_failure": "restart", "progress": False}
    whole = mh.fit(**options, output=str(tmp_path / "whole"))
    with Faults().kill(rank=1, step=25, phase="exchange"):
        struck = mh.fit(**options, output=str(tmp_path / "struck"))
    (event,) = struck.record["story"]
    assert event["restarted_from"] in (10, 20)  # 20 is written while training goes on
    assert "rank 1" in event["failed"]
    for mine, theirs in zip(struck.model.parameters(), whole.model.parameters(), strict=True):
        assert (mine == theirs).all()


@pytest.mark.parametrize("strategy", ["server", "hogwild"])
def test_a_dead_worker_of_those_who_never_wait_is_replaced(tmp_path, strategy):
    options = {"model": "mlp", "data": "blobs", "epochs": 3, "workers": 2, "kernels": "default"}
    options |= {"checkpoint_every": "5steps", "on_failure": "restart", "progress": False}
    options |= {"batch_size": 50, "strategy": strategy, "output": str(tmp_path / "run")}
    options["slow"] = "1:50:sleep"  # a checkpoint is whole long before it dies
    with Faults().kill(rank=1, step=30, phase="gradient"):
        struck = mh.fit(**options)
    (event,) = struck.record["story"]
    assert event["restarted_from"] >= 5
    assert "rank 1" in event["failed"]
    assert struck.record["result"]["examples"] == 3 * 2000
    assert [w["steps"] for w in struck.record["workers"][:2]] == [60, 60]
    pushes = struck.record["strategy"]["staleness"]["histogram"]
    assert sum(pushes.values()) == 120  # none lost, none counted twice
    assert struck.accuracy > 0.9


@pytest.mark.parametrize("strategy", ["server", "hogwild"])
def test_a_signal_stops_those_who_never_wait_and_they_can_go_on(tmp_path, strategy):
    output = tmp_path / "run"
    line = [*MANYHANDS, "train", *SMALL[:4], "--strategy", strategy]
    line += ["--epochs", "5000", "--output", str(output), "--checkpoint-every", "1h"]
    run = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: training(3 if strategy == "server" else 2))
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
    assert run.returncode == 143
    assert "--resume" in said
    (checkpoint,) = (output / "checkpoints").iterdir()
    step = int(checkpoint.name.removeprefix("step-"))
    done = manyhands("train", "--resume", output, "--max-steps", 2 * step + 50, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 2 * step + 50  # the step is the workers' average


def test_a_hang_becomes_a_report(tmp_path):
    with Faults().stop(rank=1, step=5, phase="gradient"):
        done = manyhands("train", *SMALL, "--timeout", 10, "--output", tmp_path / "run")
    assert done.returncode == 1
    assert "missing: rank 1 (stopped gradient, step 5)" in done.stderr
    assert "in allreduce" in done.stderr  # rank 0's stack


def test_two_runs_on_one_host_at_once(tmp_path):
    line = [*MANYHANDS, "train", *SMALL, "--json", "--output"]
    lines = [[*line, str(tmp_path / str(i))] for i in range(2)]
    runs = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for line in lines]
    results = [json.loads(run.communicate(timeout=PATIENCE)[0]) for run in runs]
    assert results[0]["accuracy"] == results[1]["accuracy"]


def test_fit_from_a_script_with_a_lambda_and_arrays(tmp_path):
    import numpy as np
    from torch import nn

    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 5)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    result = mh.fit(
        lambda: nn.Linear(5, 2),
        mh.Data(train=(x[:500], y[:500]), test=(x[500:], y[500:])),
        workers=2,
        epochs=10,
        batch_size=20,
        output=str(tmp_path / "run"),
        progress=False,
    )
    assert result.accuracy > 0.9
    assert len(result.history) == 10
    assert not result.model.training
    assert result.model.weight.shape == (2, 5)


def test_a_module_given_as_model_is_copied(tmp_path):
    from torch import nn

    module = nn.Linear(20, 4)
    before = module.weight.clone()
    result = mh.fit(
        module, "blobs", workers=2, epochs=1, output=str(tmp_path / "run"), progress=False
    )
    assert (module.weight == before).all()
    assert not (result.model.weight == before).all()


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_under_mpiexec_the_same_script_joins_that_group(tmp_path, mpi):
    from manyhands.launch import mpi as mpis

    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, pathlib, sys
            import manyhands as mh
            result = mh.fit("mlp", "blobs", epochs=1, output=sys.argv[1], progress=False)
            told = f"{result.record['processes']} {result.accuracy}"
            pathlib.Path(f"{sys.argv[1]}-{os.getpid()}.txt").write_text(told)
            """
        )
    )
    library = mpis.find_mpi(mpi)
    line, environment = mpis.mpiexec_command(library, 3, [str(script), str(tmp_path / "run")])
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    told = [path.read_text() for path in tmp_path.glob("run-*.txt")]
    assert len(told) == 3
    assert set(told) == {f"3 {record(tmp_path / 'run')['result']['accuracy']}"}


def test_under_mpiexec_bad_input_ends_all_ranks(tmp_path):
    from manyhands.launch import mpi as mpis

    (tmp_path / "run.json").write_text('{"schema": 1, "status": "finished"}')
    arguments = ["-m", "manyhands", "train", *SMALL, "--output", str(tmp_path)]
    line, environment = mpis.mpiexec_command(mpis.find_mpi(), 2, arguments)
    done = ran(line, env=environment)
    assert done.returncode == 2
    assert "already holds a run" in done.stderr


def test_doctor_finds_what_training_needs():
    done = manyhands("doctor")
    assert done.returncode == 0, done.stdout
    assert "PyTorch" in done.stdout


def test_help_answers_without_torch():
    check = """
        import sys
        from manyhands.cli.app import main
        try:
            main(["train", "--help"])
        except SystemExit:
            pass
        assert "torch" not in sys.modules
    """
    line = [sys.executable, "-c", textwrap.dedent(check)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
