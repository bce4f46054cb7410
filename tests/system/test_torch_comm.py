"""`--comm`: one flag puts a whole run on torch.distributed."""

import pytest
from running import manyhands, record


@pytest.mark.parametrize("comm", ["torch:mpi4py", "torch:gloo"])
def test_a_run_over_torch_distributed(comm, tmp_path):
    given = ["--epochs", "1", "--limit", "2000", "--kernels", "default", "--comm", comm]
    done = manyhands("train", "--workers", 2, *given, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    run = record(tmp_path / "run")
    assert run["status"] == "finished"
    assert run["config"]["comm"] == comm
    for worker in run["workers"]:
        assert worker["operations"][f"allreduce {comm}"]["calls"] == run["result"]["steps"]
