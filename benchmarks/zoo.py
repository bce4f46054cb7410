"""The models that the benchmarks train, and data of their shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyhands as mh
from manyhands.model.zoo import cnn, mlp


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut (He et al. 2016, arXiv 1512.03385)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the convolutions add to the shortcut."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """Return the ResNet of 18 layers for images of 32×32: 11.2 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp11m() -> nn.Module:
    """Return a perceptron of three layers with 11.0 million parameters."""
    return mlp((1, 28, 28), 10, width=2944, depth=3)


def cnn_batchnorm() -> nn.Module:
    """Return the convolutional network with BatchNorm behind each convolution, no dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5, bias=False), nn.BatchNorm2d(10), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 20, 5, bias=False), nn.BatchNorm2d(20), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50, bias=False), nn.BatchNorm1d(50), nn.ReLU(),
        nn.Linear(50, 10),
    )  # fmt: skip


def mlp_dropout() -> nn.Module:
    """Return a perceptron of three layers with dropout of single numbers between them."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 512),
        nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10),
    )  # fmt: skip


class Transformer(nn.Module):
    """Two encoder layers of width 128 over 64 tokens, classified by their mean: 0.5 million."""

    def __init__(self, tokens: int = 1000, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        return self.head(self.encoder(self.embedding(x)).mean(1))


class GPT(nn.Module):
    """A decoder of four blocks of width 256 over 64 tokens, tied embeddings: 4.2 million."""

    def __init__(self, tokens: int = 4096, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.zeros(64, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the next token, at every place; (batch, tokens, places)."""
        hidden = self.blocks(self.embedding(x) + self.position, mask=self.mask, is_causal=True)
        return (self.norm(hidden) @ self.embedding.weight.T).transpose(1, 2)


def tokens() -> mh.Data:
    """Return random texts of 64 tokens, and the next token of each: only their shape matters."""
    torch.manual_seed(0)
    x = torch.randint(4096, (2048, 65))
    return mh.Data(train=(x[:, :-1], x[:, 1:]), test=(x[:16, :-1], x[:16, 1:]))


def texts() -> mh.Data:
    """Return random texts of 64 tokens with random classes: only their shape matters here."""
    torch.manual_seed(0)
    x, y = torch.randint(1000, (8192, 64)), torch.randint(10, (8192,))
    return mh.Data(train=(x, y), test=(x[:16], y[:16]))


def images() -> mh.Data:
    """Return random images of 32×32 with random classes: only their shape matters here."""
    torch.manual_seed(0)
    x, y = torch.randn(4096, 3, 32, 32), torch.randint(10, (4096,))
    return mh.Data(train=(x, y), test=(x[:16], y[:16]))


def criterion(model: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of one of MODELS: `cnn` returns logarithms of probabilities."""
    return F.nll_loss if model == "cnn" else F.cross_entropy


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "cnn": (cnn, lambda: "mnist"),
    "cnn-batchnorm": (cnn_batchnorm, lambda: "mnist"),
    "mlp-dropout": (mlp_dropout, lambda: "mnist"),
    "mlp-11m": (mlp11m, lambda: "mnist"),
    "resnet-18": (resnet18, images),
    "transformer": (Transformer, texts),
    "gpt": (GPT, tokens),
}
