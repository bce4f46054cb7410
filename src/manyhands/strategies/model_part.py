"""What one process holds of a split model: some parameters, and the modules data passes through."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from manyhands.model.replica import Replica

if TYPE_CHECKING:
    from manyhands.model.dropout import Rows

# Modules of torch.nn that draw no random numbers; any other is given a seed before each use.
_CERTAIN = {"linear", "conv", "pooling", "flatten", "batchnorm", "normalization", "activation"}
_CERTAIN |= {"padding", "pixelshuffle", "upsampling", "container", "instancenorm", "sparse"}
_DRAWING = {"RReLU", "MultiheadAttention", "FractionalMaxPool2d", "FractionalMaxPool3d"}


class ModelPart(Replica):
    """A part of a model; the memory of the other parameters is released.

    `params`, `grad` and `named` are this part's; `layers`, `dim` and `judged` the whole model's.
    The whole is there only while it holds somebody's parameters (`holding`), to be judged or saved.

    Args:
        whole: The whole model; not to be used any more.
        children: What data passes through here, each with its place in the whole model.
        named: The parameters that are trained here.
        reached: For each of them, whether a loss depends on it.
    """

    def __init__(
        self,
        whole: Replica,
        children: Sequence[tuple[int, nn.Module]],
        named: Sequence[tuple[str, nn.Parameter]],
        reached: Sequence[bool],
    ) -> None:
        self.children = list(children)
        self.random = {place for place, module in self.children if draws(module)}
        self.module: nn.Module = nn.ModuleList([module for _, module in self.children])
        self.judged, self.masks = whole.judged, whole.masks
        self.loss, self.classifies, self.of_model = whole.loss, whole.classifies, False
        self.own_loss, self.known_loss = whole.own_loss, whole.known_loss
        self.pieces, self.autocast = 1, False
        self.prepare, self.forward = whole.prepare, self.through
        self.layers = whole.layers
        self.named = list(named)
        self._mine = [(p, p.shape) for _, p in self.named]
        self._all = [(p, p.shape) for _, p in whole.named]
        self._reached = list(reached)
        self.activations = 0  # noted by whoever knows what enters
        count = sum(p.numel() for _, p in self.named)
        self.params = torch.empty(count, dtype=whole.params.dtype)  # (own,)
        self.grad = torch.zeros_like(self.params)  # (own,)
        self._attach()
        self._let_go()

    @property
    def dim(self) -> int:
        """The number of trainable parameters of the whole model."""
        return self.layers[-1].stop

    def compute(self, x: Tensor, *key: int) -> Tensor:
        """Return the output; `key` decides what its random layers draw."""
        return self.through(self.prepare(x) if self.prepare else x, *key)

    def through(self, x: Tensor, *key: int) -> Tensor:
        """Return what the modules make of activations that are laid out already."""
        for place, module in self.children:
            if place in self.random:
                torch.default_generator.manual_seed(mixed(*key, place))
                if self.masks:
                    self.masks.seek(place)
            x = module(x)
        return x

    @contextmanager
    def masked(self, rows: Rows = None) -> Iterator[None]:
        """Let dropout use `masks` in one forward pass; its calls are counted in the whole model."""
        with super().masked(rows):
            if self.masks and self.children:
                self.masks.seek(self.children[0][0])
            yield

    @contextmanager
    def holding(self, params: Tensor) -> Iterator[None]:
        """Be the whole model for a while, with these parameters; shape (dim,)."""
        _point(self._all, params)
        try:
            yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        mine = {id(p) for p, _ in self._mine}
        for p, _ in self._all:
            if id(p) not in mine:
                p.data = self.params.new_empty(0)
                p.grad = None
        _point(self._mine, self.params)

    def reached(self, x: Tensor, y: Tensor) -> list[bool]:
        """Say for each parameter held here whether a loss depends on it; found beforehand."""
        return self._reached


def _point(parameters: Sequence[tuple[nn.Parameter, torch.Size]], vector: Tensor) -> None:
    """Let parameters of these shapes be views of a vector."""
    start = 0
    for p, shape in parameters:
        stop = start + shape.numel()
        p.data = vector[start:stop].view(shape)
        start = stop


def draws(module: nn.Module) -> bool:
    """Say whether a module may draw random numbers; of a user's own it is assumed."""
    for part in module.modules():
        package, _, home = type(part).__module__.rpartition(".")
        known = package == "torch.nn.modules" and home in _CERTAIN
        if not known or type(part).__name__ in _DRAWING:
            return True
    return False


def mixed(*key: int) -> int:
    """Return 64 bits that depend on every number of the key."""
    data = struct.pack(f"<{len(key)}q", *key)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def parameter_spans(whole: Replica) -> list[tuple[int, int]]:
    """Return where each parameter lies in the whole model's vector."""
    ends = [0]
    for _, p in whole.named:
        ends.append(ends[-1] + p.numel())
    return list(pairwise(ends))
