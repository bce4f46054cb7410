"""Finds the BatchNorm layers of a model, and lets them use the statistics of all workers.

PyTorch's BatchNorm sees the examples of one process: the result depends on how a batch is divided.
With `--sync-batchnorm` a layer sees the whole batch, in both directions:

    forward:   n, Σx, Σx²       summed over the workers       mean, v ← from these
               x̂ ← (x − mean) / √(v + ε);   y ← γ x̂ + β
    backward:  Σ∂y, Σ∂y x̂       summed over the workers
               ∂x ← γ / √(v + ε) · (∂y − Σ∂y / n − x̂ Σ∂y x̂ / n)

x: a layer's input, of one channel; n: its values over all workers; γ, β: weight and bias; ε: eps.
Ioffe & Szegedy 2015 (arXiv 1502.03167), over several devices as in torch.nn.SyncBatchNorm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from manyhands import forwards
from manyhands.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from manyhands.comm import Communicator

METERED = "batch statistics"  # what the meter calls these exchanges
_SCRIPTED = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
_ARGUMENTS: dict[Any, tuple[str, ...]] = {
    F.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training",
                   "momentum", "eps"),
    torch.batch_norm: ("input", "weight", "bias", "running_mean", "running_var", "training",
                       "momentum", "eps"),
}  # fmt: skip
_DEFAULTS = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}


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


def check(module: nn.Module) -> None:
    """Refuse to synchronise a model that has no BatchNorm, or one that cannot be reached.

    Raises:
        ConfigError: With the layer, if there is one.
    """
    found = list(batch_norms(module))
    if not found:
        raise ConfigError(
            "sync_batchnorm is True, but the model has no BatchNorm layer; it would be ignored: "
            "leave it out"
        )
    for name, layer in found:
        if isinstance(layer, torch.jit.ScriptModule):
            raise ConfigError(
                f"sync_batchnorm is True, but layer {name!r} ({kind(layer)}) is compiled by "
                "TorchScript, which exchanges nothing; give the module before torch.jit"
            )


class _Layer(NamedTuple):
    """One BatchNorm layer: its name, its place among them, and how it computes by itself."""

    name: str
    number: int
    module: nn.Module
    plain: Callable[..., Any]


class SharedStatistics:
    """The BatchNorm layers of one worker's model, with the statistics of all workers' examples.

    Guarantees:
        - P workers normalise as one worker with the whole batch does, up to rounding, however the
          batch is divided: sums are weighted by the number of values. So is the gradient, provided
          that each worker's loss is weighted before its backward pass.
        - Running statistics are updated as PyTorch does, with the same bits on every worker.
        - It acts in training mode and inside `over` only; elsewhere layers compute by themselves.
        - Sums are taken in float64 and around the running mean: variances are as exact as those
          of float32, also where the mean is much larger than the deviation.
    Cost per layer and pass: one all-reduce of 2 + 2C numbers of 8 bytes forward and 1 + 2C
    backward, for C channels; none backward where a layer's input needs no gradient.

    Args:
        module: The model; its BatchNorm layers are given another forward method.
        undoable: Whether `undo` may be called.

    Attributes:
        active: Whether layers exchange.
        seconds: How long the exchanges have taken so far.
    """

    def __init__(self, module: nn.Module, *, undoable: bool = False) -> None:
        check(module)
        self.active = False
        self.seconds = 0.0
        self._undoable = undoable
        self._buffers = list(module.buffers())
        self._before: list[Tensor] = []
        self._absent = self._empty = False
        self._sum: Callable[[Tensor, int], None]  # over the workers; tag: the layer and pass
        self._layers = [
            _Layer(name, number, layer, layer.forward)
            for number, (name, layer) in enumerate(batch_norms(module))
        ]
        self._install(self._compute)

    def _install(self, way: Callable[..., Any]) -> None:
        for layer in self._layers:
            forwards.give(layer.module, way, layer)

    def outside_compilation(self) -> None:
        """Let compiled models call these layers as they are: what they exchange is no tensor op."""
        self._install(torch.compiler.disable(self._compute))  # type: ignore[no-untyped-call]

    @contextmanager
    def over(
        self, group: Communicator, algorithm: str, note: Callable[[str], None]
    ) -> Iterator[None]:
        """Exchange statistics with the group inside. Collective.

        Args:
            group: The workers; each passes as many batches through the same layers.
            algorithm: How numbers are summed over the group.
            note: Is told "exchange" before an exchange and "gradient" after it.
        """

        def summed(vector: Tensor, tag: int) -> None:
            vector[0] = tag
            if vector.is_cuda:  # the layers before are still computing: no time of the exchange
                torch.cuda.current_stream(vector.device).synchronize()
            begin = time.monotonic()
            note("exchange")
            with group.meter.named(METERED):
                group.allreduce(vector, algorithm)
            note("gradient")
            self.seconds += time.monotonic() - begin
            if float(vector[0]) != group.size * tag:
                raise WorkerError(
                    f"rank {group.rank} is at another BatchNorm layer or pass than others; with "
                    "sync_batchnorm every worker must pass through the same layers in one order, "
                    "whatever its examples are",
                    rank=group.rank,
                )

        self._sum = summed
        if self._undoable:
            self._before = [buffer.clone() for buffer in self._buffers]
        self.active = True
        try:
            yield
        finally:
            self.active = False

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let each worker compute by itself inside, where something is only tried out."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before

    @contextmanager
    def absent(self) -> Iterator[None]:
        """Take part in the exchanges inside with no examples: what passes counts for nothing.

        Where all workers do so, buffers stay as they were, as if nothing had passed.
        """
        before = [buffer.clone() for buffer in self._buffers]
        self._absent, self._empty = True, False
        try:
            yield
        finally:
            self._absent = False
            if self._empty:
                self._put_back(before)

    def undo(self) -> None:
        """Put buffers back to where they were when the last `over` began: its step is repeated."""
        self._put_back(self._before)

    def _put_back(self, saved: list[Tensor]) -> None:
        with torch.no_grad():
            for buffer, before in zip(self._buffers, saved, strict=False):  # none before a step
                buffer.copy_(before)

    def _compute(self, layer: _Layer, x: Tensor) -> Any:
        if not layer.module.training:
            return layer.plain(x)
        if not self.active:
            # Of one value PyTorch has no statistics. Training has those of other workers beside it.
            single = x.dim() > 1 and x.numel() == x.shape[1]
            return layer.plain(torch.cat((x, x)))[:1] if single else layer.plain(x)
        calls = _Calls(self, layer)
        with calls:
            output = layer.plain(x)
        if not calls.count:
            raise ConfigError(
                f"sync_batchnorm is True, but layer {layer.name!r} ({kind(layer.module)}) computes "
                "without torch.nn.functional.batch_norm, so that its statistics cannot be "
                "exchanged; leave it out, or let the layer call that function"
            )
        return output

    def normalise(self, layer: _Layer, given: dict[str, Any]) -> Tensor:
        """Do what `F.batch_norm` does in training mode, over all workers. Collective."""
        x, running = given["input"], (given["running_mean"], given["running_var"])
        with torch.no_grad():
            count, mean, var = self._statistics(layer, x, running[0])
            if count == 1:
                raise ValueError(
                    "Expected more than 1 value per channel when training, got input size "
                    f"{tuple(x.shape)} over all workers"
                )
            if count and running[0] is not None:
                unbiased = var * (count / (count - 1))
                for buffer, new in zip(running, (mean, unbiased), strict=True):
                    buffer.lerp_(new.to(buffer.dtype), given["momentum"])
        result: Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
            x, given["weight"], given["bias"], mean, var, count, given["eps"], self._back(layer)
        )
        return result

    def _statistics(
        self, layer: _Layer, x: Tensor, centre: Tensor | None
    ) -> tuple[float, Tensor, Tensor]:
        """Return how many values a channel has over all workers, their mean and variance (C,)."""
        channels = x.shape[1]
        own = 0 if self._absent else x.numel() // channels
        vector = torch.zeros(2 + 2 * channels, dtype=torch.float64, device=x.device)
        near = vector.new_zeros(channels) if centre is None else centre.double()
        if own:
            mean, var = torch.batch_norm_update_stats(_wide(x), None, None, 0.0)
            off = mean.double() - near
            vector[1] = own
            torch.cat((off, var.double() + off * off), out=vector[2:])
            vector[2:] *= own
        self._sum(vector, 2 * layer.number + 1)
        count = float(vector[1])
        if not count:
            self._empty = True
            return count, near, torch.ones_like(near)
        off, squares = (vector[2:] / count).chunk(2)
        return count, near + off, (squares - off * off).clamp_(min=0)

    def _back(self, layer: _Layer) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return what sums a layer's two sums of the backward pass over all workers; (C,) each."""
        absent = self._absent

        def summed(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            vector = torch.zeros(1 + 2 * len(one), dtype=torch.float64, device=one.device)
            if not absent:
                torch.cat((one.double(), other.double()), out=vector[1:])
            self._sum(vector, 2 * layer.number + 2)
            first, second = vector[1:].chunk(2)
            return first, second

        return summed


class _Calls(TorchFunctionMode):
    """Sees that a layer calls `F.batch_norm`, and answers in its place where it trains."""

    def __init__(self, shared: SharedStatistics, layer: _Layer) -> None:
        super().__init__()
        self.shared, self.layer, self.count = shared, layer, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the mode is off inside
        kwargs = kwargs or {}
        if func not in _ARGUMENTS:
            return func(*args, **kwargs)
        self.count += 1
        given = {**_DEFAULTS, **dict(zip(_ARGUMENTS[func], args, strict=False)), **kwargs}
        if not given["training"]:
            return func(*args, **kwargs)
        return self.shared.normalise(self.layer, given)


class _Normalise(torch.autograd.Function):
    """y = γ (x − mean) / √(var + ε) + β, where mean and var are those of all workers' x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        count: float,
        eps: float,
        back: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    ) -> Tensor:
        # As wide as parameters are: under autocast x is narrower.
        dtype = x.dtype if x.dtype == torch.float64 else torch.float32
        mean, var = mean.to(dtype), var.to(dtype)
        ctx.save_for_backward(x, weight, mean, var)
        ctx.count, ctx.eps, ctx.back = max(count, 1.0), eps, back
        ctx.given = ctx.needs_input_grad[0], weight is not None, bias is not None
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Any, ...]:
        x, weight, mean, var = ctx.saved_tensors
        wide, g = _wide(x), _wide(given)
        reduce = torch.ops.aten.native_batch_norm_backward.default
        mask = [False, True, True]
        scale = torch.rsqrt(var + ctx.eps)
        factor = torch.ones_like(mean) if weight is None else weight
        _, by_weight, by_bias = reduce(
            g, wide, factor, mean, var, mean, scale, False, ctx.eps, mask
        )  # Σ∂y x̂, Σ∂y
        inner, weighted, biased = ctx.given
        by_input = None
        if inner:
            sums = (part / ctx.count for part in ctx.back(by_bias, by_weight))
            by_input = _by_input(wide, g, mean, scale.double(), factor * scale, *sums).to(x.dtype)
        return (
            by_input, by_weight if weighted else None, by_bias if biased else None, *[None] * 5
        )  # fmt: skip


def _by_input(
    x: Tensor, g: Tensor, mean: Tensor, scale: Tensor, factor: Tensor, ones: Tensor, centred: Tensor
) -> Tensor:
    """Return ∂x.

    Args:
        x: The layer's input.
        g: ∂y, in the same shape.
        mean: The mean of each channel over all workers, (C,), as all that follows.
        scale: 1 / √(var + ε).
        factor: γ times that.
        ones: Σ∂y / n.
        centred: Σ∂y x̂ / n.
    """
    shape = (1, -1, *[1] * (x.dim() - 2))
    along, shift, factor, mean = (
        part.to(x.dtype).view(shape)
        for part in (-factor * scale * centred, -factor * ones, factor, mean)
    )
    return torch.addcmul(shift, x - mean, along).addcmul_(g, factor)


def _wide(x: Tensor) -> Tensor:
    """Return it in float32 where it is narrower."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
