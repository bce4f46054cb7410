"""What a run warns of is printed by the command, in front of the results."""

import os
import subprocess
import sys

import pytest

LOSS = """
import torch
import torch.nn.functional as F


def info_nce(output, target):
    scores = F.normalize(output) @ F.normalize(output.roll(1, 1)).T
    return F.cross_entropy(scores / 0.1, torch.arange(len(output)))
"""
AUGMENTING = """
import sys

import torch

import manyhands as mh


def noisy(batch):
    x, y = batch
    return x + 0.1 * torch.randn_like(x), y


strategy, workers = sys.argv[1], int(sys.argv[2])
given = {"strategy": strategy, "workers": workers, "limit": 400, "batch_size": 40}
mh.fit("mlp", "blobs", augment=noisy, **given)
"""
LINE = "train --data blobs --model mlp --epochs 1 --limit 400 --batch-size 40 --strategy sync"


def test_a_loss_over_the_batch_is_warned_of_where_batches_are_split(tmp_path):
    (tmp_path / "losses.py").write_text(LOSS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = {}
    for workers in (1, 2):
        line = [sys.executable, "-m", "manyhands", *LINE.split(), "--loss", "losses:info_nce"]
        line += ["--workers", str(workers), "--output", f"run-{workers}"]
        done = subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        said[workers] = done.stdout + done.stderr
    assert "info_nce is no mean over examples" in said[2]
    assert "no mean over examples" not in said[1]


@pytest.mark.parametrize(
    ("strategy", "workers", "told"),
    [("sync", 2, True), ("sync", 1, False), ("averaging", 2, False)],
)
def test_augmentation_is_warned_of_where_one_workers_result_is_promised(
    tmp_path, strategy, workers, told
):
    (tmp_path / "augmenting.py").write_text(AUGMENTING)
    line = [sys.executable, "augmenting.py", strategy, str(workers)]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ("how batches are divided: augment" in done.stderr) is told
