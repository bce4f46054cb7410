"""What the project promises about itself: its commands, its pins, its layers, its sizes."""

from __future__ import annotations

import ast
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "manyhands"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    return [Requirement(line) for line in lines]


def pins(python: str) -> dict[str, str]:
    """Return name → version of the lines of constraints.txt that apply to this Python."""
    found: dict[str, str] = {}
    for line in text("constraints.txt").splitlines():
        if not line or line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker and not pin.marker.evaluate({"python_version": python}):
            continue
        (specifier,) = pin.specifier
        name = canonicalize_name(pin.name)
        assert specifier.operator == "==", line
        assert name not in found, f"{name} is pinned twice for Python {python}"
        found[name] = specifier.version
    return found


@pytest.mark.parametrize("command", ["make demo", "make test", "make help"])
def test_readme_names_the_commands(command: str) -> None:
    assert command in text("README.md")


def test_readme_stays_short() -> None:
    assert len(text("README.md").splitlines()) <= 120


@pytest.mark.parametrize("platform", ["Linux", "macOS", "WSL", "CPU-only"])
def test_readme_names_the_platforms(platform: str) -> None:
    assert platform in text("README.md")


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_every_dependency_is_pinned_within_its_range(python: str) -> None:
    pinned = pins(python)
    for wanted in requirements():
        if wanted.marker and not wanted.marker.evaluate({"python_version": python}):
            continue
        version = pinned.get(canonicalize_name(wanted.name))
        assert version, f"{wanted.name} is not in constraints.txt for Python {python}"
        assert wanted.specifier.contains(version), f"{wanted} is pinned to {version}"


def test_installing_names_no_index_of_packages() -> None:
    for name in ("constraints.txt", "Makefile", "pyproject.toml", ".ci/run"):
        assert not re.search(r"index-url|find-links|INDEX_URL", text(name)), name


def test_source_files_stay_short() -> None:
    lengths = {path: len(path.read_bytes().splitlines()) for path in SOURCE.rglob("*.py")}
    assert lengths
    assert {str(path): n for path, n in lengths.items() if n >= 400} == {}


def test_functions_stay_short() -> None:
    """Sixty lines at the most, the docstring not counted."""
    long = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                first = body[0].lineno if body else node.lineno
                lines = (node.end_lineno or 0) - first + 1 + node.body[0].lineno - node.lineno
                if lines > 60:
                    long[f"{path.relative_to(SOURCE)}:{node.name}"] = lines
    assert long == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "base", "common", "misc"}
    assert [path for path in SOURCE.rglob("*.py") if path.stem in empty] == []


def test_layers_of_imports_are_declared() -> None:
    layers = next(
        contract["layers"]
        for contract in PYPROJECT["tool"]["importlinter"]["contracts"]
        if contract.get("exhaustive")
    )
    order = [re.findall(r"\w+", layer) for layer in layers]
    place = {module: depth for depth, modules in enumerate(order) for module in modules}
    downwards = ["cli", "training", "strategies", "worker", "model", "config", "launch", "errors"]
    assert [place[module] for module in downwards] == sorted(place[m] for m in downwards)
    assert not PYPROJECT["tool"]["importlinter"]["exclude_type_checking_imports"]


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("manyhands", exclude_type_checking_imports=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    while free := [module for module, below in imports.items() if not below & imports.keys()]:
        for module in free:
            del imports[module]
    assert sorted(imports) == []


def test_the_top_of_the_package_stays_small() -> None:
    uncounted = {"__init__.py", "__main__.py", "_version.py", "py.typed", "__pycache__"}
    assert len({path.name for path in SOURCE.iterdir()} - uncounted) <= 20


@pytest.mark.parametrize(
    "module", ["errors", "config.run", "config.optimizers", "config.options", "cli.app", "api"]
)
def test_what_the_command_line_needs_imports_no_heavy_package(module: str) -> None:
    code = (
        f"import sys, manyhands.{module}\n"
        "print(*sorted({'torch', 'mpi4py', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_make_help_describes_every_target() -> None:
    makefile = text("Makefile")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    described = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    assert described == set(phony.split())
    assert {"demo", "test", "test-system", "lint", "format", "bench", "wheel"} <= described


def test_ci_runs_lint_and_all_tests() -> None:
    ran = re.findall(r"^make (\S+)$", text(".ci/run"), re.MULTILINE)
    assert ran == ["lint", "docs", "test", "test-system"]
    assert "bash .ci/run" in text(".github/workflows/ci.yml")


def test_records_name_no_path_of_a_machine() -> None:
    path = re.compile(r'[" =](/(?:root|home|tmp|work|Users)/)')
    folders = ("docs/records", "benchmarks/results", "studies/results")
    records = [file for folder in folders for file in (ROOT / folder).rglob("*")]
    texts = {file: file.read_bytes() for file in records if file.suffix in (".json", ".csv")}
    assert texts
    packed = {file: file.read_bytes() for file in records if file.name.endswith(".tar.xz")}
    assert packed
    texts |= {file: lzma.decompress(data) for file, data in packed.items()}
    assert not [str(file) for file, data in texts.items() if path.search(data.decode())]


def test_licences_are_stated() -> None:
    assert "Apache License" in text("LICENSE")
    for words in ("LeCun", "Cortes", "Burges", "CC BY-SA 3.0", "data/mnist"):
        assert words in text("NOTICE")
    assert PROJECT["license"] == "Apache-2.0"
    for name in PROJECT["license-files"]:
        assert (ROOT / name).is_file()


def test_fit_needs_no_mpi_to_be_imported() -> None:
    code = "import sys; sys.modules['mpi4py'] = None; import manyhands; manyhands.fit"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


def test_no_tracked_file_holds_a_conflict_marker() -> None:
    marker = r"^(<{7}|[|]{7}|>{7})( |$)"
    found = subprocess.run(
        ["git", "-C", str(ROOT), "grep", "-nIE", marker],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode > 1:
        pytest.skip(f"not a git checkout: {found.stderr}")
    assert found.stdout == ""
