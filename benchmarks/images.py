"""MNIST as torchvision hands it out, for the scripts that ours is held against."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset


class Images(Dataset[tuple[torch.Tensor, int]]):
    """One image at a time, scaled and normalised in Python."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.images[index]).float().div(255).view(1, 28, 28)
        return image.sub(0.1307).div(0.3081), int(self.labels[index])
