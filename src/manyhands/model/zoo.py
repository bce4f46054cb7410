"""The bundled models, by name; each is an `nn.Sequential` of named layers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, ...]


def cnn(shape: Shape = (1, 28, 28), classes: int = 10) -> nn.Sequential:
    """Two convolutions, two fully connected layers, log-softmax: 9,840 parameters on MNIST."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(shape[0], 10, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(10, 20, 5),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            dropout=nn.Dropout2d(),
            pool3=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(20 * ((((shape[1] - 4) // 2 - 4) // 2) // 2) ** 2, 50),
            relu3=nn.ReLU(),
            fc2=nn.Linear(50, classes),
            logsoftmax=nn.LogSoftmax(dim=1),
        )
    )


def mlp(
    shape: Shape = (784,), classes: int = 10, width: int = 128, depth: int = 3
) -> nn.Sequential:
    """Return a multi-layer perceptron with `depth` fully connected layers and ReLU between them."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    inputs = math.prod(shape)
    for i in range(1, depth):
        layers[f"fc{i}"] = nn.Linear(inputs, width)
        layers[f"relu{i}"] = nn.ReLU()
        inputs = width
    layers[f"fc{depth}"] = nn.Linear(inputs, classes)
    return nn.Sequential(layers)


def logistic(shape: Shape = (784,), classes: int = 10) -> nn.Sequential:
    """Return logistic regression: one fully connected layer, the baseline of every other model."""
    return mlp(shape, classes, depth=1)


def mlp6(shape: Shape = (784,), classes: int = 10) -> nn.Sequential:
    """Return a perceptron of six layers: enough of them for several masters to share."""
    return mlp(shape, classes, width=64, depth=6)


def tanh_cnn(shape: Shape = (1, 28, 28), classes: int = 10) -> nn.Sequential:
    """The end-to-end CNN of Tramèr & Boneh (arXiv 2011.11660), made for private training."""
    side = (shape[1] + 4 - 8) // 2 + 1 - 1  # after conv1 and pool1
    side = (side - 4) // 2 + 1 - 1  # after conv2 and pool2
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(shape[0], 16, 8, stride=2, padding=2),
            tanh1=nn.Tanh(),
            pool1=nn.MaxPool2d(2, 1),
            conv2=nn.Conv2d(16, 32, 4, stride=2),
            tanh2=nn.Tanh(),
            pool2=nn.MaxPool2d(2, 1),
            flatten=nn.Flatten(),
            fc1=nn.Linear(32 * side**2, 32),
            tanh3=nn.Tanh(),
            fc2=nn.Linear(32, classes),
        )
    )


MODELS: dict[str, Callable[[Shape, int], nn.Sequential]] = {
    "cnn": cnn,
    "mlp": mlp,
    "logistic": logistic,
    "mlp6": mlp6,
    "tanh-cnn": tanh_cnn,
}


def bce(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of labels that do not exclude each other."""
    return F.binary_cross_entropy_with_logits(output, target.to(output.dtype))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": F.cross_entropy,
    "nll": F.nll_loss,
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "bce": bce,
}

# What `loss=None` means for the models that come with manyhands.
OWN_LOSS = {
    "cnn": "nll",
    "mlp": "cross-entropy",
    "logistic": "cross-entropy",
    "mlp6": "cross-entropy",
    "tanh-cnn": "cross-entropy",
}
