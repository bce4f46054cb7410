"""What a run warns of is printed by the command, in front of the results."""

import os
import subprocess
import sys

LOSS = """
import torch
import torch.nn.functional as F


def info_nce(output, target):
    scores = F.normalize(output) @ F.normalize(output.roll(1, 1)).T
    return F.cross_entropy(scores / 0.1, torch.arange(len(output)))
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
