"""`--comm`: one flag puts a whole run on torch.distributed."""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("comm", ["torch:mpi4py", "torch:gloo"])
def test_a_run_over_torch_distributed(comm, tmp_path):
    line = [sys.executable, "-m", "manyhands", "train", "--strategy", "sync", "--workers", "2"]
    line += ["--epochs", "1", "--limit", "2000", "--comm", comm, "--output", str(tmp_path / "run")]
    line += ["--kernels", "default"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["config"]["comm"] == comm
    for worker in record["workers"]:
        assert worker["operations"][f"allreduce {comm}"]["calls"] == record["result"]["steps"]
