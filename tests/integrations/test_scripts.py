"""The scripts of examples/integrations run as they stand, with the real packages, offline."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import manyhands as mh
from manyhands.callbacks import WandB
from manyhands.launch import mpi as mpis

SCRIPTS = Path(__file__).parents[2] / "examples" / "integrations"

# Each script: the packages that it needs, its processes under mpiexec, and what it prints.
CASES = {
    "accelerate_over_mpi": (["accelerate"], 2, "2 processes over mpi4py, .*equal weights: True"),
    "dataloader_workers": ([], None, r"test accuracy (0\.[89]|1\.)"),
    "hugging_face_datasets": (
        ["datasets"], None,
        r"Dataset: 500[^$]*'validation': 100, 'test': 200}, test accuracy (0\.[89]|1\.)"
        r"[^$]*resumed without a difference: True",
    ),
    "lightning_over_mpi": (["lightning"], 2, "2 processes over mpi4py, .*equal weights: True"),
    "mlflow_logging": (["mlflow"], None, r"lr 0\.1: test loss \d[^$]*lr 0\.01: test loss \d"),
    "optuna_pruning": (["optuna"], None, r"pruned after [1-5] epochs[^$]*best: lr 0"),
    "sklearn_search": (["sklearn"], None, r"the best, with two workers: test accuracy 0\.[89]"),
    "trainer_over_mpi": (
        ["accelerate", "datasets", "transformers"], 2,
        "2 processes over mpi4py, .*equal weights: True",
    ),
    "transformers_finetune": (
        ["transformers"], None, r"test accuracy (0\.[89]|1\.).*; read again from 'tuned': True",
    ),
    "wandb_logging": (["wandb"], None, r"Result\(strategy=sync, workers=2"),
}  # fmt: skip


def expect_installed(package):
    """Skip a test without its package; in CI, where it would never run, fail it."""
    if importlib.util.find_spec(package) is None:
        leave = pytest.fail if os.environ.get("CI") else pytest.skip
        leave(f"{package} is not installed: pip install '.[integrations]'")


def test_every_script_is_run():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(CASES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_a_script_ends_well_and_prints(name, tmp_path):
    packages, processes, printed = CASES[name]
    for package in packages:
        expect_installed(package)
    line, environment = [sys.executable, str(SCRIPTS / f"{name}.py")], dict(os.environ)
    if processes:
        line, own = mpis.mpiexec_command(mpis.find_mpi(), processes, line[1:])
        environment |= own
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"}
    done = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert re.search(printed, done.stdout), done.stdout


class Fails:
    def on_epoch(self, epoch):
        raise ZeroDivisionError


@pytest.mark.timeout(600)
def test_a_failed_run_leaves_no_open_run_of_weights_and_biases(tmp_path, monkeypatch):
    expect_installed("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    with pytest.raises(ZeroDivisionError):
        mh.fit(
            "logistic",
            "blobs",
            callbacks=[WandB(mode="offline", dir=str(tmp_path)), Fails()],
            callbacks_in="caller",
            progress=False,
            output=str(tmp_path / "run"),
        )
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1
    assert wandb.run is None
