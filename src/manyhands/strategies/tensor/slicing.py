"""Fully connected layers cut within the layer: which numbers each process holds of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from manyhands.allreduce.buffers import cuts
from manyhands.errors import ConfigError
from manyhands.model.replica import Replica
from manyhands.strategies.model_blocks import blocks
from manyhands.strategies.model_part import ModelPart, parameter_spans

if TYPE_CHECKING:
    from manyhands.comm import Communicator

# What treats every number alone, so that a part of its input gives that part of its output.
_ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Sigmoid, nn.Hardtanh, nn.Softplus, nn.Softsign, nn.Identity,
)  # fmt: skip


class Team:
    """The processes that hold one model between them.

    Attributes:
        seconds: What their sums have taken so far.
        note: Told "exchange" before a sum and "gradient" after it.
    """

    def __init__(self, group: Communicator, algorithm: str) -> None:
        self.group, self.algorithm = group, algorithm
        self.seconds = 0.0
        self.note: Callable[[str], None] = lambda what: None

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over the team; the same bits on every process."""
        begin = time.monotonic()
        self.note("exchange")
        total = x.detach().clone(memory_format=torch.contiguous_format)
        self.group.allreduce(total.view(-1), self.algorithm)
        self.note("gradient")
        self.seconds += time.monotonic() - begin
        return total


class _Enter(torch.autograd.Function):
    """f: as it is on the way forward, the sum over the team on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team) -> Tensor:
        ctx.team = team
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.team.sum(gradient), None


class _Leave(torch.autograd.Function):
    """g: the sum over the team on the way forward, as it is on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team) -> Tensor:
        return team.sum(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Outputs(nn.Module):
    """Some outputs of a fully connected layer: y_k = A_k f(x) + b_k."""

    def __init__(self, layer: nn.Linear, first: int, last: int, team: Team) -> None:
        super().__init__()
        self.team = team
        self.weight = _copied(layer.weight[first:last])  # (last - first, inputs)
        self.bias = None if layer.bias is None else _copied(layer.bias[first:last])

    def forward(self, x: Tensor) -> Tensor:
        """Return some columns of the layer's output."""
        x = _Enter.apply(x, self.team)  # type: ignore[no-untyped-call]
        return nn.functional.linear(x, self.weight, self.bias)


class Inputs(nn.Module):
    """What some inputs add to a fully connected layer's output: y = g(A_k x_k) + b.

    Args:
        entire: All of the input enters, and the part is taken from it here.
    """

    def __init__(
        self, layer: nn.Linear, first: int, last: int, team: Team, *, entire: bool
    ) -> None:
        super().__init__()
        self.team, self.entire, self.mine = team, entire, slice(first, last)
        self.weight = _copied(layer.weight[:, first:last])  # (outputs, last - first)
        self.bias = layer.bias  # everyone's: it is added after the sum

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, on every process."""
        if self.entire:
            x = _Enter.apply(x, self.team)[..., self.mine]  # type: ignore[no-untyped-call]
        mine = nn.functional.linear(x, self.weight)
        y: Tensor = _Leave.apply(mine, self.team)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias


def _copied(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach().clone())


class Held(NamedTuple):
    """A parameter that this process holds, all of it or a part.

    Attributes:
        parameter: What is held.
        axis: Along which the whole parameter is cut; None: everyone holds all of it.
        first: Where on that axis the part begins.
    """

    parameter: nn.Parameter
    axis: int | None = None
    first: int = 0

    def within(self, whole: Tensor) -> Tensor:
        """Return where it lies in the whole parameter, as a view."""
        if self.axis is None:
            return whole
        return whole.narrow(self.axis, self.first, self.parameter.shape[self.axis])


class Slice(ModelPart):
    """One process's slice of every fully connected layer, and all of everything else.

    Args:
        whole: The whole model; not to be used any more.
        team: Those that hold the model together.
        reached: For each trainable parameter of the whole, whether a loss depends on it.

    Attributes:
        key: What decides the numbers that random layers draw: the same in the whole team.
        sliced: The names of the parameters of which each process holds a part.
        apart: Of the gradient, as views: what the whole team holds, and what is cut.
    """

    def __init__(self, whole: Replica, team: Team, reached: Sequence[bool]) -> None:
        chain = [entry for block in blocks(whole.module, "tensor") for entry in block.modules]
        children, pieces = sliced(chain, team)
        self.team, self.first = team, team.group.rank == 0
        self.held = [pieces.get(id(p), Held(p)) for _, p in whole.named]
        pairs = list(zip(whole.named, self.held, strict=True))
        self.sliced = [name for (name, _), held in pairs if held.axis is not None]
        self.places = [
            (*span, p.shape)
            for span, ((_, p), _) in zip(parameter_spans(whole), pairs, strict=True)
        ]
        named = [(name, held.parameter) for (name, _), held in pairs]
        super().__init__(whole, children, named, reached)
        grads = list(zip(self._grads, self.held, strict=True))
        self.apart = [
            [g.view(-1) for g, held in grads if (held.axis is None) == common]
            for common in (True, False)
        ]
        self.key: tuple[int, ...] = (0,)
        self.forward = lambda x: self.through(x, *self.key)

    def allreduce(self, teams: Communicator, algorithm: str) -> None:
        """Sum the gradient over the teams, in place; what the whole team holds is summed apart.

        An algorithm may add in an order that follows the place in the vector, and that place
        differs between slices. Two numbers have one order.
        """
        if teams.size == 2:
            teams.allreduce(self.grad, algorithm)
            return
        for views in filter(None, self.apart):
            vector = torch.cat(views)
            teams.allreduce(vector, algorithm)
            torch._foreach_copy_(views, torch.split(vector, [len(view) for view in views]))

    def give(self, vector: Tensor) -> None:
        """Write what this process answers for into the whole model's vector; shape (dim,)."""
        for held, (start, stop, shape) in zip(self.held, self.places, strict=True):
            if self.first or held.axis is not None:
                held.within(vector[start:stop].view(shape)).copy_(held.parameter.detach())

    def shared_buffers(self) -> list[tuple[Tensor, bool]]:
        """Return the buffers to average; the team's are all the same, so one gives them."""
        return [(b, self.first) for b, _ in super().shared_buffers()]


def sliced(
    chain: Sequence[tuple[int, nn.Module]], team: Team
) -> tuple[list[tuple[int, nn.Module]], dict[int, Held]]:
    """Return the modules with this process's slices in place of fully connected layers.

    Two such layers with nothing but elementwise functions between them are cut as a pair: the
    first by its outputs, the second by its inputs, so that nothing is exchanged between them. A
    layer without a partner is cut by its inputs. One that is narrower than the team stays whole.

    Returns:
        The modules, and what is held of each parameter that is cut, by the parameter's id.
    """
    listed = list(chain)
    pieces: dict[int, Held] = {}
    size, rank = team.group.size, team.group.rank
    layers = [i for i, (_, module) in enumerate(chain) if _divisible(module)]
    while layers:
        at = layers.pop(0)
        layer = cast("nn.Linear", chain[at][1])
        after = layers[0] if layers else len(chain)
        between = chain[at + 1 : after]
        paired = bool(layers) and all(type(module) in _ELEMENTWISE for _, module in between)
        width = layer.out_features if paired else layer.in_features
        if width < size:
            continue
        first, last = cuts(width, size)[rank : rank + 2]
        if paired:
            outputs = Outputs(layer, first, last, team)
            listed[at] = (chain[at][0], outputs)
            pieces[id(layer.weight)] = Held(outputs.weight, 0, first)
            if outputs.bias is not None:
                pieces[id(layer.bias)] = Held(outputs.bias, 0, first)
            at = layers.pop(0)
            layer = cast("nn.Linear", chain[at][1])
        inputs = Inputs(layer, first, last, team, entire=not paired)
        listed[at] = (chain[at][0], inputs)
        pieces[id(layer.weight)] = Held(inputs.weight, 1, first)
    if not pieces:
        raise ConfigError(
            f"slices is {size}, but the model has no fully connected layer (nn.Linear, trainable, "
            "one of the modules that data passes through) of at least that width; use fewer "
            "slices, or pipeline"
        )
    return listed, pieces


def _divisible(module: nn.Module) -> bool:
    """Say whether a module is a fully connected layer and no more: its weight is what is trained.

    `torch.nn.utils.spectral_norm` and the like make the weight of something else, by a hook.
    """
    if type(module) is not nn.Linear or set(module._parameters) != {"weight", "bias"}:
        return False
    hooks = (getattr(module, f"_{kind}_hooks") for kind in ("forward", "forward_pre", "backward"))
    return not any(hooks) and all(p.requires_grad for p in module.parameters())
