"""The project that `manyhands new` writes runs, and passes its own test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from running import PATIENCE, manyhands

pytestmark = pytest.mark.timeout(PATIENCE + 20)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    done = manyhands("new", "my_project", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "cd my_project && python train.py" in done.stdout
    return folder / "my_project"


def test_its_script_trains(project: Path) -> None:
    line = [sys.executable, "train.py", "--strategy", "averaging"]
    done = subprocess.run(line, cwd=project, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Result(strategy=averaging, workers=2, accuracy=0.9")
    (record,) = project.glob("runs/*/run.json")
    assert record.with_name("model.safetensors").exists()


def test_its_own_test_passes(project: Path) -> None:
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(line, cwd=project, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_its_readme_names_its_files(project: Path) -> None:
    text = (project / "README.md").read_text()
    assert text.startswith("# my_project\n")
    assert len(text.splitlines()) <= 10
    for path in project.glob("*.py"):
        assert f"`{path.name}`" in text


def test_a_folder_that_exists_is_left_alone(project: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in project.iterdir()}
    done = manyhands("new", "my_project", cwd=project.parent)
    assert done.returncode == 2
    assert done.stderr == "manyhands: 'my_project' exists; choose the name of a new folder\n"
    assert {path: path.stat().st_mtime_ns for path in project.iterdir()} == before
