"""What a release says of itself agrees with what is tested and built."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import manyhands as mh

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = ROOT / ".github" / "workflows"
CONTAINERS = [ROOT / "containers" / name for name in ("Dockerfile", "manyhands.def")]


def workflow(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))
    return loaded


def ci_pythons() -> list[str]:
    pythons: list[str] = workflow("ci.yml")["jobs"]["linux"]["strategy"]["matrix"]["python"]
    return pythons


def test_the_classifiers_name_the_pythons_that_ci_runs() -> None:
    found = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert found == ci_pythons()
    assert PROJECT["requires-python"] == f">={found[0]}"


def test_the_page_on_compatibility_states_the_tested_and_the_lowest_versions() -> None:
    page = (ROOT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
    *others, last = ci_pythons()
    assert f"CI runs {', '.join(others)} and {last} |" in page
    (torch,) = (line for line in PROJECT["dependencies"] if line.startswith("torch>="))
    assert f"| PyTorch | {torch.removeprefix('torch>=')} and newer |" in page


def test_the_citation_is_of_this_version_and_licence_and_names_nobody() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == mh.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["abstract"] == PROJECT["description"]
    assert cited["keywords"] == [word.replace("pytorch", "PyTorch") for word in PROJECT["keywords"]]
    assert cited["authors"] == [{"name": "The manyhands maintainers"}]


def test_a_release_tests_its_wheel_with_every_python_before_it_publishes_without_a_token() -> None:
    text = (WORKFLOWS / "release.yml").read_text(encoding="utf-8")
    jobs = workflow("release.yml")["jobs"]
    assert jobs["test"]["needs"] == "build"
    assert jobs["test"]["strategy"]["matrix"]["python"] == ci_pythons()
    assert jobs["publish"]["needs"] == ["test", "integrations"]
    assert {"run": "make test-integrations"} in jobs["integrations"]["steps"]
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert "secrets." not in text
    assert {"bash .ci/try_wheel", "bash .ci/try_sdist"} <= {
        step.get("run") for step in jobs["test"]["steps"]
    }
    (packed,) = re.findall(r"tar -czf dist/manyhands-records\.tar\.gz (.*)$", text, re.MULTILINE)
    assert all((ROOT / folder).is_dir() for folder in packed.split())


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    section = runpy.run_path(str(ROOT / ".ci" / "release_notes.py"))["section"]
    changelog = "# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2026-01-02\n\n### Added\n\n- All.\n"
    assert section(changelog, "1.0.0") == "### Added\n\n- All."
    for version in ("1.0.1", "1x0.0", "Unreleased"):
        with pytest.raises(ValueError, match=re.escape(f"no section [{version}] with text")):
            section(changelog, version)
    assert section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), mh.__version__)


@pytest.mark.parametrize(("tag", "early"), [("v{}", None), ("v1.0.0rc9", True), ("v1.0.0", False)])
def test_only_a_candidate_is_published_as_a_prerelease(
    tag: str, early: bool | None, tmp_path: Path
) -> None:
    early = "rc" in mh.__version__ if early is None else early
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "release_notes.py").write_text("print('notes of this version')\n")
    gh = tmp_path / "gh"
    gh.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    gh.chmod(0o755)
    (step,) = (s for s in workflow("release.yml")["jobs"]["attach"]["steps"] if "run" in s)
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={
            **os.environ,
            "TAG": tag.format(mh.__version__),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("--prerelease" in done.stdout.split()) == early
    assert "--notes-file\nnotes.md\n" in done.stdout
    assert (tmp_path / "notes.md").read_text() == "notes of this version\n"


@pytest.mark.parametrize(
    ("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_a_missing_package_of_an_integration_fails_in_ci_and_skips_elsewhere(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = ROOT / "tests" / "integrations" / "test_scripts.py"
    run_script = runpy.run_path(str(path))["test_a_script_ends_well_and_prints"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CI", ci)
    outcomes = (pytest.fail.Exception, pytest.skip.Exception)
    with pytest.raises(outcomes, match="mlflow is not installed") as caught:
        run_script("mlflow_logging", tmp_path)
    assert caught.type is outcome


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_every_workflow_may_only_read_unless_a_job_says_more(path: Path) -> None:
    assert workflow(path.name)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.name)
def test_a_container_has_a_tested_python_and_targets_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (python,) = re.findall(r"^from:? python:(3\.\d+)-slim$", text, re.MULTILINE | re.IGNORECASE)
    assert python in ci_pythons()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = re.findall(r"\bmake ([a-z]+)\b", text)
    assert {"demo", "setup", "test"} <= set(asked)
    assert set(asked) <= set(targets)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.name)
def test_the_files_of_the_forge_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_the_page_on_integrations_names_pinned_versions_and_every_script() -> None:
    page = (ROOT / "docs" / "how-to" / "integrations.md").read_text(encoding="utf-8")
    newest = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = dict(
        re.findall(r"^([\w-]+)==([\d.]+)(?:; python_version >= .*)?$", newest, re.MULTILINE)
    )
    names = {"PyTorch": "torch", "MLflow": "mlflow-skinny", "Weights & Biases": "wandb"}
    names |= {"Spark": "pyspark"}
    rows = re.findall(r"^\| (.+?)(?: \(.+?\)|:.+?)? \| (.+?) \|", page, re.MULTILINE)[1:]
    assert [library for library, version in rows if version == "–"] == ["Horovod"]  # only replaced
    rows.remove(("Horovod", "–"))
    stated = {names.get(library, library.lower()): version for library, version in rows}
    assert len(stated) > 10
    assert stated == {name: pinned.get(name) for name in stated}
    scripts = {path.name for path in (ROOT / "examples" / "integrations").glob("*.py")}
    assert {name for name in scripts if f"examples/integrations/{name})" not in page} == set()
