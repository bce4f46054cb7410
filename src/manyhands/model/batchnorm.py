"""Finds a model's BatchNorm layers, and lets them use the statistics of all workers.

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

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from manyhands.errors import ConfigError, WorkerError
from manyhands.model.kernels import forward_override

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
    """Yield the layers that normalise by batch statistics, with their names.

    These are BatchNorm, classes that derive from it, and BatchNorm in TorchScript, but not
    InstanceNorm, which looks at each example alone.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            is_norm = kind(layer) in _SCRIPTED
        else:
            is_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if is_norm and not isinstance(layer, nn.modules.instancenorm._InstanceNorm):
            yield name, layer


def kind(layer: nn.Module) -> str:
    """Return the name of a layer's class, also of a TorchScript layer."""
    return str(getattr(layer, "original_name", type(layer).__name__))


def check(module: nn.Module) -> None:
    """Refuse to synchronise a model without BatchNorm, or with unreachable layers.

    Raises:
        ConfigError: With the layer, if there is one.
    """
    norms = list(batch_norms(module))
    if not norms:
        raise ConfigError(
            "sync_batchnorm is True, but the model has no BatchNorm layer; it would be ignored: "
            "leave it out"
        )
    for name, layer in norms:
        if isinstance(layer, torch.jit.ScriptModule):
            raise ConfigError(
                f"sync_batchnorm is True, but layer {name!r} ({kind(layer)}) is compiled by "
                "TorchScript, which exchanges nothing; give the module before torch.jit"
            )


class _Layer(NamedTuple):
    """One BatchNorm layer: its name, its index, and its own forward function."""

    name: str
    number: int
    module: nn.Module
    plain: Callable[..., Any]


class SharedStatistics:
    """The BatchNorm layers of a worker's model, with statistics over all workers' examples.

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
        # Over the workers, of numbers on the host; tag: the layer and pass.
        self._sum: Callable[[np.ndarray, int, torch.device], np.ndarray]
        self._layers = [
            _Layer(name, number, layer, layer.forward)
            for number, (name, layer) in enumerate(batch_norms(module))
        ]
        self._install(self._compute)

    def _install(self, way: Callable[..., Any]) -> None:
        for layer in self._layers:
            forward_override.override_forward(layer.module, way, layer)

    def outside_compilation(self) -> None:
        """Exclude these layers from compilation: what they exchange is no tensor operation."""
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

        def summed(vector: np.ndarray, tag: int, device: torch.device) -> np.ndarray:
            vector[0] = tag
            begin = time.monotonic()
            note("exchange")
            there = torch.from_numpy(vector).to(device)
            with group.meter.named(METERED):
                group.allreduce(there, algorithm)
            vector = there.cpu().numpy()
            note("gradient")
            self.seconds += time.monotonic() - begin
            if vector[0] != group.size * tag:
                raise WorkerError(
                    f"rank {group.rank} is at another BatchNorm layer or pass than others; with "
                    "sync_batchnorm every worker must pass through the same layers in one order, "
                    "whatever its examples are",
                    rank=group.rank,
                )
            return vector

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
        """Let each worker compute by itself inside, for trials."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before

    @contextmanager
    def absent(self) -> Iterator[None]:
        """Take part in the exchanges inside without examples; the inputs count for nothing.

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
        """Restore the buffers from before the last `over`, whose step is repeated."""
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

    def normalise(self, layer: _Layer, arguments: dict[str, Any]) -> Tensor:
        """Do what `F.batch_norm` does in training mode, over all workers. Collective."""
        x, running = arguments["input"], (arguments["running_mean"], arguments["running_var"])
        count, mean, var = self._statistics(layer, x.detach(), running[0])
        if count == 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got input size "
                f"{tuple(x.shape)} over all workers"
            )
        if count and running[0] is not None:
            unbiased = var * (count / (count - 1))
            with torch.no_grad():
                for buffer, new in zip(running, (mean, unbiased), strict=True):
                    buffer.lerp_(torch.from_numpy(new).to(buffer), arguments["momentum"])
        statistics = _Statistics(max(count, 1.0), mean, var, arguments["eps"])
        result: Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
            x, arguments["weight"], arguments["bias"], statistics, self._back(layer, x.device)
        )
        return result

    def _statistics(
        self, layer: _Layer, x: Tensor, centre: Tensor | None
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """Return each channel's count of values, mean and variance over all workers (C,)."""
        channels = x.shape[1]
        own = 0 if self._absent else x.numel() // channels
        vector = np.zeros(2 + 2 * channels)
        near = np.zeros(channels) if centre is None else _to_host(centre)
        if own:
            mean, var = map(
                _to_host, torch.batch_norm_update_stats(_at_least_float32(x), None, None, 0.0)
            )
            off = mean - near
            vector[1] = own
            vector[2 : 2 + channels] = own * off
            vector[2 + channels :] = own * (var + off * off)
        vector = self._sum(vector, 2 * layer.number + 1, x.device)
        count = float(vector[1])
        if not count:
            self._empty = True
            return count, near, np.ones(channels)
        off, squares = vector[2:].reshape(2, channels) / count
        return count, near + off, np.maximum(squares - off * off, 0.0)

    def _back(self, layer: _Layer, device: torch.device) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that sums the backward sums of a layer over all workers; (2, C)."""
        absent = self._absent

        def summed(sums: np.ndarray) -> np.ndarray:
            vector = np.zeros(1 + sums.size)
            if not absent:
                vector[1:] = sums.reshape(-1)
            return self._sum(vector, 2 * layer.number + 2, device)[1:].reshape(sums.shape)

        return summed


class _Statistics(NamedTuple):
    """Each channel's count of values, mean and variance over all workers."""

    values: float
    mean: np.ndarray  # (C,) float64
    var: np.ndarray
    eps: float


class _Calls(TorchFunctionMode):
    """Intercepts a layer's call of `F.batch_norm` in training mode."""

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
        arguments = {**_DEFAULTS, **dict(zip(_ARGUMENTS[func], args, strict=False)), **kwargs}
        if not arguments["training"]:
            return func(*args, **kwargs)
        return self.shared.normalise(self.layer, arguments)


class _Normalise(torch.autograd.Function):
    """y = γ (x − mean) / √(var + ε) + β, where mean and var are those of all workers' x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: _Statistics,
        back: Callable[[np.ndarray], np.ndarray],
    ) -> Tensor:
        mean, var, scale = _to_device(
            x, statistics.mean, statistics.var, 1 / np.sqrt(statistics.var + statistics.eps)
        )
        ctx.save_for_backward(x, weight, mean, var, scale)
        ctx.statistics, ctx.back = statistics, back
        ctx.wanted = ctx.needs_input_grad[0], weight is not None, bias is not None
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, statistics.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Any, ...]:
        x, weight, mean, var, scale = ctx.saved_tensors
        wide, g, statistics = (
            _at_least_float32(x),
            _at_least_float32(output_gradient),
            ctx.statistics,
        )
        ones = torch.ones_like(mean) if weight is None else weight
        _, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward.default(
            g, wide, ones, mean, var, mean, scale, False, statistics.eps, [False, True, True]
        )  # Σ∂y x̂, Σ∂y
        inner, weighted, biased = ctx.wanted
        by_input = None
        if inner:
            means = ctx.back(np.stack((_to_host(by_bias), _to_host(by_weight)))) / statistics.values
            by_input = _input_gradient(wide, g, statistics, _to_host(ones), means).to(x.dtype)
        return by_input, by_weight if weighted else None, by_bias if biased else None, None, None


def _input_gradient(
    x: Tensor, g: Tensor, statistics: _Statistics, weight: np.ndarray, means: np.ndarray
) -> Tensor:
    """Return ∂x.

    Args:
        x: The layer's input.
        g: ∂y, in the same shape.
        statistics: Of all workers' x.
        weight: γ, (C,).
        means: Σ∂y / n and Σ∂y x̂ / n, (2, C).
    """
    scale = 1 / np.sqrt(statistics.var + statistics.eps)
    factor = weight * scale
    numbers = (statistics.mean, -factor * scale * means[1], -factor * means[0], factor)
    shape = (1, -1, *[1] * (x.dim() - 2))
    mean, along, shift, times = (part.view(shape) for part in _to_device(x, *numbers))
    return (x - mean).mul_(along).add_(shift).addcmul_(g, times)


def _to_device(x: Tensor, *numbers: np.ndarray) -> tuple[Tensor, ...]:
    """Return float64 numbers on the device of `x`, in its type but at least float32."""
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    return torch.from_numpy(np.stack(numbers)).to(x.device, dtype).unbind()


def _to_host(numbers: Tensor) -> np.ndarray:
    """Return a few numbers on the host, in float64."""
    array: np.ndarray = numbers.detach().cpu().numpy().astype(np.float64)
    return array


def _at_least_float32(x: Tensor) -> Tensor:
    """Return the tensor in float32 if its type is narrower."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
