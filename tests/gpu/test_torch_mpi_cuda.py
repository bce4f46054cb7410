"""The backend mpi4py takes tensors on a GPU: collectives, messages, DDP with its hooks."""

import subprocess

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
    pytest.mark.timeout(200),
]

SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import manyhands.torch_mpi

dist.init_process_group("mpi4py")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())

def gpu(value, *shape):
    return torch.full(shape, float(value), device="cuda")

vector = gpu(rank, 300_001)
dist.all_reduce(vector)
assert (vector == sum(range(size))).all()
half = gpu(1, 5).bfloat16()
dist.all_reduce(half, dist.ReduceOp.AVG)
assert (half == 1).all()
parts = [gpu(-1, 3) for _ in range(size)]
dist.all_gather(parts, gpu(rank, 3))
assert [int(part[2]) for part in parts] == list(range(size))
whole = gpu(0, size)
dist.all_gather_into_tensor(whole, gpu(rank, 1))
assert whole.tolist() == list(range(size))
mine = gpu(0, 1)
dist.reduce_scatter_tensor(mine, whole)
assert mine.tolist() == [size * rank]
columns = gpu(7, 4, 4).t()[:2]  # not contiguous
dist.broadcast(columns.fill_(rank), size - 1)
assert (columns == size - 1).all()
received = gpu(0, 2)
works = [dist.irecv(received, (rank - 1) % size), dist.isend(gpu(rank, 2), (rank + 1) % size)]
[work.wait() for work in works]
assert received.tolist() == [(rank - 1) % size] * 2

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 4)).cuda()
alone = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 4)).cuda()
alone.load_state_dict(model.state_dict())
ddp = DistributedDataParallel(model)
x, y = torch.randn(8 * size, 20, device="cuda"), torch.arange(8 * size, device="cuda") % 4
for net, bx, by in ((ddp, x[rank * 8:][:8], y[rank * 8:][:8]), (alone, x, y)):
    torch.nn.functional.cross_entropy(net(bx), by).backward()
for ours, theirs in zip(model.parameters(), alone.parameters()):
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)
objects = [None] * size
dist.all_gather_object(objects, rank)
assert objects == list(range(size))
dist.destroy_process_group()
print("well")
"""


def test_collectives_messages_and_ddp(tmp_path):
    from manyhands.launch import mpi

    (tmp_path / "script.py").write_text(SCRIPT)
    line, environment = mpi.mpiexec_command(mpi.find_mpi("mpich"), 2, [str(tmp_path / "script.py")])
    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("well") == 2
