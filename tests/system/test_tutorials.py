"""The commands and the code of the tutorials run as they stand."""

import json
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import pages
import pytest
from running import ran

from manyhands.launch import mpi

TUTORIALS = pages.DOCS / "tutorials"
SETUP = ("make", ".", "pip")  # what prepares a checkout; the environment of the tests is prepared


def blocks(page, kind):
    return pages.blocks(TUTORIALS / page, kind)


def commands(page):
    typed = [
        line[2:]
        for text in blocks(page, "console")
        for line in text.splitlines()
        if line[0:2] == "$ "
    ]
    return [shlex.split(line) for line in typed]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write all Python blocks of a page as one script."""
    monkeypatch.chdir(tmp_path)

    def write(page):
        path = tmp_path / "loop.py"
        path.write_text("\n".join(blocks(page, "python")))
        return path

    return write


def test_every_kind_of_block_is_known():
    names = sorted(path.name for path in TUTORIALS.iterdir())
    assert names == ["first-run.md", "own-loop.md", "own-model.md", "private-model.md"]
    found = (pages.BLOCK.findall((TUTORIALS / name).read_text()) for name in names)
    kinds = {kind for page in found for kind, _ in page}
    assert kinds == {"console", "python", "sh"}


def test_the_first_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train, compare = commands("first-run.md")
    shown = blocks("first-run.md", "console")[0]
    done = ran([sys.executable, "-m", *train])
    assert done.returncode == 0, done.stderr
    accuracy = re.compile(r"test accuracy ([\d.]+) %")
    assert accuracy.findall(done.stderr + done.stdout) == accuracy.findall(shown)
    files = {path.name for path in (tmp_path / "first").iterdir()}
    named = set(re.findall(r"`([\w.-]+\.(?:safetensors|json|jsonl|log))`", page_of_first_run()))
    assert files == named
    done = ran([sys.executable, "-m", *compare])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "both" / "report.html").exists()
    assert len(json.loads((tmp_path / "both" / "sweep.json").read_text())["planned"]) == 5


def page_of_first_run():
    return (TUTORIALS / "first-run.md").read_text()


def test_your_own_model(script):
    done = runpy.run_path(str(script("own-model.md")), run_name="__main__")
    assert done["result"].record["status"] == "finished"
    assert done["result"].accuracy > 0.8
    assert Path("comparison/report.html").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_your_own_loop(workers, script):
    path = script("own-loop.md")
    line, environment = [sys.executable, path.name], dict(os.environ)
    if workers > 1:
        line, environment = mpi.mpiexec_command(mpi.find_mpi(), workers, [path.name])
    done = ran(line, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"accuracy 0\.\d+ with (\d) workers", done.stdout) == [str(workers)]


def test_a_private_model(script):
    (question,) = commands("private-model.md")
    done = ran([sys.executable, "-m", *question])
    assert done.returncode == 0, done.stderr
    (shown,) = blocks("private-model.md", "console")
    assert done.stdout.splitlines()[:3] == shown.splitlines()[1:]
    run = runpy.run_path(str(script("private-model.md")), run_name="__main__")
    assert 0 < run["stated"]["epsilon_pld"] <= 3.0
    assert f"σ = {run['stated']['noise_multiplier']}" in done.stdout
