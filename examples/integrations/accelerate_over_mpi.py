"""Hugging Face Accelerate over MPI, from stock wheels.

Needs `pip install '.[integrations]'`. Run it under an mpiexec:
`mpiexec -n 2 python examples/integrations/accelerate_over_mpi.py`.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import manyhands.torch_mpi  # noqa: F401 — registers the backend


def main():
    dist.init_process_group("mpi4py")  # Accelerate takes the group that is there
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(2000, 20)
    data = TensorDataset(x, (x[:, :10].sum(1) > x[:, 10:].sum(1)).long())
    model = torch.nn.Linear(20, 2)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        DataLoader(data, batch_size=25, shuffle=True),
    )
    for _ in range(5):
        for inputs, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
    weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach()[None])
    right = (model(x).argmax(1) == data.tensors[1]).float().mean()
    accelerator.print(
        f"{accelerator.num_processes} processes over {dist.get_backend()}, "
        f"{100 * right:.1f} % right, equal weights: {bool((weights == weights[0]).all())}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
