"""Commands in places, and with standard streams, that they were not made for."""

import os
import subprocess
import sys

import pytest
from running import MANYHANDS, PATIENCE, record

SMALL = ["--data", "blobs", "--model", "logistic", "--limit", "96", "--batch-size", "8"]
TRAIN = ["train", *SMALL, "--epochs", "1", "--workers", "2"]
COMMAND = [
    sys.executable,
    "-c",
    "import sys; del sys.path[0]\nfrom manyhands.__main__ import main; main()",
]


def run(line, **options):
    return subprocess.run(
        list(map(str, line)), capture_output=True, text=True, timeout=PATIENCE, **options
    )


@pytest.mark.parametrize("strategy", ["sync", "hogwild"])
def test_modules_in_the_working_folder_do_not_stand_in_for_ours(strategy, tmp_path):
    (tmp_path / "manyhands").mkdir()
    (tmp_path / "manyhands/__init__.py").write_text("raise SystemExit('the wrong manyhands')")
    (tmp_path / "signal.py").write_text("")
    done = run([*COMMAND, *TRAIN, "--strategy", strategy, "--output", "run"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert record(tmp_path / "run")["status"] == "finished"


def test_a_model_in_the_working_folder_is_found(tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(2, 5)\n"
    )
    (tmp_path / "data.py").write_text(
        "import numpy as np\nimport manyhands as mh\n"
        "def make():\n    x = np.eye(20, 2, dtype='float32')\n"
        "    return mh.Data(train=(x, np.arange(20) % 5))\n"
    )
    line = "train --data data:make --model own:make --batch-size 4 --epochs 1 --output run"
    done = run([*COMMAND, *line.split()], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_working_folder_that_is_gone_is_no_traceback(tmp_path):
    line = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m manyhands doctor"
    done = run(["sh", "-c", line.replace("doctor", " ".join(TRAIN))], cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("manyhands: "), done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_result_that_cannot_be_printed_names_standard_output(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*MANYHANDS, *TRAIN, "--output", str(tmp_path / "run")],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
        )  # fmt: skip
    assert done.returncode == 1
    last = "manyhands: cannot write to standard output: No space left on device"
    assert done.stderr.strip().splitlines()[-1] == last
    assert record(tmp_path / "run")["status"] == "finished"


def test_a_run_outlives_the_reader_of_its_progress(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*MANYHANDS, *TRAIN, "--output", str(tmp_path / "run")],
        stdout=subprocess.PIPE, stderr=writer, timeout=PATIENCE,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 0
    assert record(tmp_path / "run")["status"] == "finished"


def test_a_daemon_without_standard_streams_trains(tmp_path):
    line = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *MANYHANDS, *TRAIN, "--output", "run"]
    done = run(line, cwd=tmp_path)
    assert done.returncode == 0
    assert record(tmp_path / "run")["status"] == "finished"


def test_a_worker_that_exits_without_an_error_is_one(tmp_path):
    (tmp_path / "own.py").write_text(
        "import os\nfrom manyhands.callbacks import Callback\nclass Leave(Callback):\n"
        "    def on_epoch(self, *args, **more):\n        os._exit(0)\n"
    )
    alone = ["train", *SMALL, "--epochs", "1", "--workers", "1", "--strategy", "sequential"]
    done = run([*MANYHANDS, *alone, "--callbacks", "own:Leave", "--output", "run"], cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "exited without reporting an error, as os._exit(0) does" in done.stderr
    assert "Traceback" not in done.stderr
    assert record(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize("removed", ["run", "temporary"])
def test_a_folder_that_is_removed_while_the_run_uses_it_is_named(removed, tmp_path):
    (tmp_path / "temporary").mkdir()
    (tmp_path / "own.py").write_text(
        "import glob, shutil\nfrom manyhands.callbacks import Callback\n"
        "class Remove(Callback):\n    def on_epoch(self, *args, **more):\n"
        f"        shutil.rmtree({str(tmp_path)!r} + '/run')\n"
        f"        for each in glob.glob({str(tmp_path)!r} + '/temporary/manyhands-*'):\n"
        "            shutil.rmtree(each)\n"
    )
    if removed == "run":
        text = (tmp_path / "own.py").read_text().replace("/temporary/", "/nothing/")
    else:
        text = (tmp_path / "own.py").read_text().replace("'/run'", "'/nothing', True")
    (tmp_path / "own.py").write_text(text)
    line = [
        *MANYHANDS,
        "train",
        *SMALL,
        "--epochs",
        "3",
        "--workers",
        "2",
        "--callbacks",
        "own:Remove",
        "--output",
        "run",
    ]
    done = run(line, cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path / "temporary")})
    assert done.returncode == 1, done.stderr
    assert "has been removed while the run used it; start the run again" in done.stderr
    assert done.stderr.count("Traceback") == done.stderr.count("[rank 0] Traceback")
