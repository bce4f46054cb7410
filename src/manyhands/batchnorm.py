"""Finds the BatchNorm layers of a model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

_SCRIPTED = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")


def batch_norms(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that normalise by the statistics of a batch, with their names.

    These are BatchNorm, classes that derive from it, and BatchNorm in TorchScript, but not
    InstanceNorm, which looks at each example alone.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            found = kind(layer) in _SCRIPTED
        else:
            found = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if found and not isinstance(layer, nn.modules.instancenorm._InstanceNorm):
            yield name, layer


def kind(layer: nn.Module) -> str:
    """Return the name of a layer's class, also of one that was compiled by TorchScript."""
    return str(getattr(layer, "original_name", type(layer).__name__))
