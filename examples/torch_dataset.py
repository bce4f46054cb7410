"""A torch Dataset and an optimizer of your own: `python examples/torch_dataset.py`."""

import torch
from torch import nn
from torch.utils.data import Dataset

import manyhands as mh


class Spirals(Dataset):
    """Two spirals that wind around each other; each item is made when it is asked for."""

    def __init__(self, count, seed):
        self.count = count
        self.noise = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        label = i % 2
        radius = torch.tensor(i / self.count)
        angle = 6 * radius + torch.pi * label
        point = radius * torch.stack([torch.cos(angle), torch.sin(angle)])
        return point + 0.02 * self.noise[i], label


def main():
    result = mh.fit(
        lambda: nn.Sequential(
            nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
        ),
        mh.Data(train=Spirals(2000, seed=1), test=Spirals(500, seed=2)),
        optimizer=lambda params: torch.optim.RMSprop(params, lr=0.003),
        workers=2,
        epochs=30,
        batch_size=40,
    )
    for epoch in result.history[::10]:
        print(f"epoch {epoch['epoch']:2d}: test accuracy {epoch['test_accuracy']:.3f}")
    print(f"at the end: {result.accuracy:.3f}")
    return result


if __name__ == "__main__":
    main()
