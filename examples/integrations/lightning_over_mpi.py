"""Lightning over MPI, from stock wheels.

Needs `pip install '.[integrations]'`. Run it under an mpiexec:
`mpiexec -n 2 python examples/integrations/lightning_over_mpi.py`.
"""

import os

import lightning
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.fabric.plugins.environments import MPIEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

import manyhands.torch_mpi  # noqa: F401 — registers the backend


class Linear(lightning.LightningModule):
    """A linear classifier."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(20, 2)

    def training_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def main():
    torch.manual_seed(0)
    x = torch.randn(2000, 20)
    data = TensorDataset(x, (x[:, :10].sum(1) > x[:, 10:].sum(1)).long())
    model = Linear()
    trainer = lightning.Trainer(
        strategy=DDPStrategy(process_group_backend="mpi4py", cluster_environment=MPIEnvironment()),
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),  # set by manyhands.torch_mpi
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=25, shuffle=True))
    weights = [torch.empty(2, 20) for _ in range(trainer.world_size)]
    dist.all_gather(weights, model.layer.weight.detach())
    if trainer.is_global_zero:
        same = all(torch.equal(each, weights[0]) for each in weights)
        right = (model.layer(x).argmax(1) == data.tensors[1]).float().mean()
        print(
            f"{trainer.world_size} processes over {dist.get_backend()}, "
            f"{100 * right:.1f} % right, equal weights: {same}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
