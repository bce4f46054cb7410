"""The weekly workflow tests the lower bounds that pyproject.toml states, each once."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

SCRIPT = Path(__file__).parents[3] / ".ci" / "lowest.py"
lowest: Any = runpy.run_path(str(SCRIPT))["lowest"]


def test_every_dependency_and_extra_is_pinned_to_its_bound() -> None:
    project = {
        "dependencies": ["numpy>=1.26", "tomli>=2.0; python_version < '3.11'"],
        "optional-dependencies": {"a": ["Scipy[all]>=1.10"], "b": ["numpy>=1.26"]},
    }
    expected = ["numpy==1.26", "Scipy==1.10", "tomli==2.0; python_version < '3.11'"]
    assert lowest(project) == expected


@pytest.mark.parametrize("text", ["numpy", "numpy==1.26", "numpy<3", "numpy~=1.26"])
def test_a_dependency_without_a_lower_bound_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="has no lower bound"):
        lowest({"dependencies": [text]})


def test_two_bounds_of_one_package_are_an_error() -> None:
    extras = {"a": ["scipy>=1.10"], "b": ["scipy>=1.11"]}
    with pytest.raises(ValueError, match="scipy has two lower bounds"):
        lowest({"dependencies": [], "optional-dependencies": extras})


def test_this_project_has_a_bound_for_everything() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    pins = done.stdout.splitlines()
    assert any(pin.startswith("torch==") for pin in pins)
    # Earlier ones lack Parameter(n_tokens=…), without which no command starts.
    assert "cyclopts==4.8" in pins


def test_the_weekly_workflow_tests_the_lowest_and_the_newest_versions() -> None:
    path = SCRIPT.parents[1] / ".github" / "workflows" / "versions.yml"
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    job = workflow["jobs"]["versions"]
    assert {each["versions"] for each in job["strategy"]["matrix"]["include"]} == {
        "lowest",
        "newest",
    }
    assert workflow[True]["schedule"]  # YAML reads the key "on" as true
    runs = {"lowest": "", "newest": ""}
    for step in job["steps"]:
        if "if" in step:
            runs[step["if"].removeprefix("matrix.versions == ").strip("'")] += step["run"]
    assert ".ci/lowest.py > bounds.txt" in runs["lowest"]
    assert "--upgrade-strategy eager" in runs["newest"]
    assert "pip install --upgrade --no-deps 'attrs>=24'" in runs["newest"]
    assert "pytest tests/unit/privacy" in runs["newest"]
    assert any("pytest tests/unit" in step.get("run", "") for step in job["steps"])
    assert any(step.get("run", "").endswith("--mpi openmpi --sizes 2") for step in job["steps"])
    assert any(
        step.get("run", "").endswith("--mpi mpich --sizes 1,2,3,4,5") for step in job["steps"]
    )
    assert {"run": "make test-integrations"} in workflow["jobs"]["integrations"]["steps"]
