"""DistributedDataParallel over MPI, from stock wheels: only the two lines with mpi are new.

Run it under an mpiexec: `mpiexec -n 2 python examples/ddp_over_mpi.py`.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import manyhands.torch_mpi  # noqa: F401 — registers the backend


def main():
    dist.init_process_group("mpi4py")
    torch.manual_seed(0)
    x = torch.randn(2000, 20)
    data = TensorDataset(x, (x[:, :10].sum(1) > x[:, 10:].sum(1)).long())
    loader = DataLoader(data, batch_size=50, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Linear(20, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    right = (model(x).argmax(1) == data.tensors[1]).float().mean()
    dist.all_reduce(right, dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, {100 * right:.1f} % right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
