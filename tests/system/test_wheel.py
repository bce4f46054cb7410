"""The built wheel, installed alone into an empty environment, trains and answers `--help`."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build the wheel and install it without the checkout; what it needs is seen from outside."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True
    )
    # The dependencies, gigabytes, are those of the environment the tests run in; the package
    # itself must not be found there.
    site = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    own = next((folder / "venv/lib").glob("python*/site-packages"))
    (own / "dependencies.pth").write_text(f"{site}\n")
    for name in ("bin/mpiexec.hydra", "bin/hydra_pmi_proxy", "lib/libmpi.so.12", "lib/mpich"):
        (folder / "venv" / name).symlink_to(Path(sys.prefix) / name)
    return folder / "venv"


def environment():
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


def test_it_comes_from_the_wheel(installed):
    line = [str(installed / "bin/python"), "-c", "import manyhands; print(manyhands.__file__)"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.startswith(str(installed))


def test_it_has_no_start_up_hooks(installed):
    """Other programs of the environment start as before: nothing of ours runs in them."""
    (site,) = (installed / "lib").glob("python*/site-packages")
    hooks = {path.name for kind in ("*.pth", "*customize.py") for path in site.glob(kind)}
    own = {"dependencies.pth", "distutils-precedence.pth"}  # the fixture's, and setuptools'
    assert hooks <= own


def test_it_answers_help(installed):
    line = [str(installed / "bin/manyhands"), "--help"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), check=True)
    assert "train" in done.stdout


def test_it_trains_on_the_data_inside(installed, tmp_path):
    line = [str(installed / "bin/manyhands"), "train", "--limit", "3000", "--epochs", "1", "--json"]
    done = subprocess.run(
        [*line, "--lr", "0.1", "--output", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env={**environment(), "MANYHANDS_CACHE": str(tmp_path / "cache")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.3


def test_the_demo_and_the_new_project_are_inside(installed, tmp_path):
    code = (
        "from manyhands.experiments.sweep.experiment_definition import DEMO, read\n"
        "print(DEMO, read(DEMO).title)"
    )
    line = [str(installed / "bin/python"), "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.startswith(str(installed))
    line = [str(installed / "bin/manyhands"), "new", "mine"]
    subprocess.run(line, cwd=tmp_path, env=environment(), check=True)
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {
        "README.md", "data.py", "model.py", "test_train.py", "train.py",
    }  # fmt: skip
