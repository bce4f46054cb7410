"""One stage of a model: a replica of consecutive layers, whose other layers are elsewhere."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from manyhands.replica import Replica

if TYPE_CHECKING:
    from manyhands.strategies.cutting import Block

# Modules of torch.nn that draw no random numbers; any other is given a seed before each use.
_CERTAIN = {"linear", "conv", "pooling", "flatten", "batchnorm", "normalization", "activation"}
_CERTAIN |= {"padding", "pixelshuffle", "upsampling", "container", "instancenorm", "sparse"}
_DRAWING = {"RReLU", "MultiheadAttention", "FractionalMaxPool2d", "FractionalMaxPool3d"}


class Stage(Replica):
    """The layers that one process trains; the parameters of the others are let go.

    `params`, `grad` and `named` are this stage's; `layers`, `dim` and `judged` the whole model's.
    The whole is there only while it holds somebody's parameters (`holding`), to be judged or saved.

    Args:
        whole: The whole model; not to be used any more.
        parts: The blocks of every stage.
        index: Which of them is this process's; None for a driver, which has no layer.
        reached: For each trainable parameter of the whole, whether a loss depends on it.
    """

    def __init__(
        self,
        whole: Replica,
        parts: Sequence[Sequence[Block]],
        index: int | None,
        reached: Sequence[bool],
    ) -> None:
        mine = [] if index is None else parts[index]
        self.children = [entry for block in mine for entry in block.modules]
        self.random = {place for place, module in self.children if draws(module)}
        self.module: nn.Module = nn.ModuleList([module for _, module in self.children])
        self.judged = whole.judged
        self.loss, self.classifies = whole.loss, whole.classifies
        self.prepare, self.forward = whole.prepare, self.compute
        self.layers = whole.layers
        self.cuts = [part[0].name for part in parts[1:]]
        places = dict(zip((id(p) for _, p in whole.named), _spans(whole), strict=True))
        owned = [{id(p) for block in part for p in block.parameters()} for part in parts]
        self.spans = [[places[id(p)] for _, p in whole.named if id(p) in ids] for ids in owned]
        ids = set() if index is None else owned[index]
        self.named = [(name, p) for name, p in whole.named if id(p) in ids]
        self._mine = [(p, p.shape) for _, p in self.named]
        self._all = [(p, p.shape) for _, p in whole.named]
        flags = zip(whole.named, reached, strict=True)
        self._reached = [used for (_, p), used in flags if id(p) in ids]
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
        """Return the stage's output; `key` decides what its random layers draw."""
        if self.prepare:
            x = self.prepare(x)
        for place, module in self.children:
            if place in self.random:
                torch.default_generator.manual_seed(mixed(*key, place))
            x = module(x)
        return x

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
        """Say for each parameter of this stage whether a loss depends on it; found beforehand."""
        return self._reached

    def shared_buffers(self) -> list[tuple[Tensor, bool]]:
        """Return every buffer of the whole model, and whether it is this stage's."""
        mine = {id(b) for b in self.module.buffers()}
        return [(b, id(b) in mine) for b in self.judged.buffers()]


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


def _spans(whole: Replica) -> list[tuple[int, int]]:
    """Return where each parameter lies in the vector."""
    ends = [0]
    for _, p in whole.named:
        ends.append(ends[-1] + p.numel())
    return list(pairwise(ends))
