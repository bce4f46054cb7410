"""MNIST as torchvision hands it out, for the scripts that ours is held against."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class Images(Dataset[tuple[torch.Tensor, int]]):
    """One image at a time, by the steps of torchvision's MNIST, ToTensor and Normalize.

    An image of Pillow's; its bytes copied, reordered and scaled; then a copy of it, normalised.
    """

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = Image.fromarray(self.images[index].reshape(28, 28))
        image = torch.from_numpy(np.array(picture, np.uint8, copy=True))
        image = image.view(picture.size[1], picture.size[0], 1).permute(2, 0, 1).contiguous()
        image = image.to(torch.get_default_dtype()).div(255).clone()
        mean, std = torch.as_tensor((0.1307,)), torch.as_tensor((0.3081,))
        if bool((std == 0).any()):
            raise ValueError("a deviation of 0")
        image.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))
        return image, int(self.labels[index])
