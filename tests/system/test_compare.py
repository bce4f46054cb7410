"""`manyhands compare` and `manyhands report` as a user meets them, with real runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import MANYHANDS, PATIENCE, eventually, manyhands, ran

TINY = ("--data", "blobs", "--model", "mlp", "--epochs", "1", "--threads", "1")


def records(sweep: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(sweep.glob("runs/*/run.json"))]


def test_a_comparison_ends_with_an_answer_and_the_report_can_be_built_again(
    tmp_path: Path,
) -> None:
    line = ("compare", "--strategies", "sync", "--workers", "2", "--allreduce", "mpi,ring")
    done = manyhands(*line, *TINY, "--repeats", "1", "--output", "sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 runs of 3 configurations, into sweep" in done.stderr
    assert "[1/3] sequential (repeat 1): " in done.stderr
    assert "[3/3] sync × 2, allreduce ring (repeat 1): " in done.stderr
    told = json.loads((tmp_path / "sweep" / "report.json").read_text(encoding="utf-8"))
    assert told["answer"]
    assert all(sentence["text"] in done.stdout for sentence in told["answer"])
    assert done.stdout.rstrip().endswith("report: sweep/report.html")
    found = records(tmp_path / "sweep")
    assert len(found) == 3
    assert len({record["kernels"]["choice"] for record in found}) == 1
    assert sum(record["kernels"]["source"] == "given" for record in found) == 2
    assert not list(tmp_path.glob("sweep/runs/*/model.safetensors"))
    assert len(list(tmp_path.glob("sweep/runs/*/steps.jsonl"))) == 3

    again = manyhands("report", "sweep", "--output", "other", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == "report: other/report.html"
    rows = (tmp_path / "sweep" / "results.csv").read_text()
    assert (tmp_path / "other" / "results.csv").read_text() == rows


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_comparison_that_was_interrupted_goes_on(tmp_path: Path, signum: int) -> None:
    line = ("compare", "--strategies", "sync", "--workers", "1,2", *TINY, "--repeats", "1")
    process = subprocess.Popen(
        [*MANYHANDS, *line, "--output", "sweep"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert eventually(lambda: list(tmp_path.glob("sweep/runs/*/run.json")))
    os.killpg(process.pid, signum)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signum, said
    assert "of 3 runs; the same command with --output sweep goes on from there" in said
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("sweep/runs/*/steps.jsonl")}
    assert 1 <= len(kept) < 3

    done = manyhands(*line, "--output", "sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(records(tmp_path / "sweep")) == 3
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    other = manyhands(*line, "--output", "sweep", "--lr", "0.3", cwd=tmp_path)
    assert other.returncode == 2
    assert "holds another sweep" in other.stderr


def test_a_run_that_fails_is_listed_and_the_others_are_done(tmp_path: Path) -> None:
    line = ("compare", "--strategies", "sync", "--workers", "2", *TINY, "--repeats", "1")
    rates = ("--lr", "0.1,1e30", "--no-baseline")
    done = manyhands(*line, *rates, "--output", "sweep", cwd=tmp_path)
    assert done.returncode == 1
    assert "failed: sync × 2, lr 1e+30 (repeat 1): the loss is" in done.stdout
    assert "report: sweep/report.html" in done.stdout
    states = sorted(record["status"] for record in records(tmp_path / "sweep"))
    assert states == ["failed", "finished"]


def test_what_cannot_work_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('strategies = ["sync"]\n[axes]\nworker = [1, 2]\n')
    done = manyhands("compare", "mine.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "manyhands: mine.toml: unknown option 'worker'. Did you mean 'workers'?\n"
    ignored = manyhands("compare", "--strategies", "sequential", "--topology", "ring", cwd=tmp_path)
    assert ignored.returncode == 2
    assert "topology is an option of gossip; no run of this comparison takes it" in ignored.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.toml"]


def test_an_experiment_from_a_file_with_its_quick_size_and_flags(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'title = "My question"\nstrategies = ["sync"]\nrepeats = 3\n'
        '[options]\ndata = "blobs"\nmodel = "mlp"\nthreads = 1\nepochs = 9\n'
        "[axes]\nworkers = [2, 4]\n[quick]\nrepeats = 1\nworkers = 2\n"
    )
    line = ("compare", "mine.toml", "--quick", "--epochs", "1", "--output", "sweep")
    done = manyhands(*line, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = records(tmp_path / "sweep")
    assert [record["config"]["workers"] for record in found] == [1, 2]
    assert {record["config"]["epochs"] for record in found} == {1}
    assert "My question" in (tmp_path / "sweep" / "report.html").read_text()


SCRIPT = """
import numpy as np
from torch import nn
import manyhands as mh

def network():
    return nn.Linear(3, 2)

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    data = mh.Data((x, (x[:, 0] > 0).astype(np.int64)), (x, (x[:, 0] > 0).astype(np.int64)))
    table = mh.compare(
        network, data, strategies=["sync"], workers=2, repeats=1, epochs=2, limit=200,
        scaling="weak", batch_size=16, output="sweep", progress=False,
    )
    for row in table:
        print(row["strategy"], row["workers"], row["examples"])
"""


def test_the_same_from_python_with_a_model_and_data_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = ran([sys.executable, "mine.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["sequential", "1", "400.0", "sync", "2", "800.0"]
