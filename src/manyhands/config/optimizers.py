"""Optimizers as frozen data, so that they travel, print and compare; each builds torch.optim's own.

All three work element by element, so they run on the flat parameter vector. Any other optimizer is
given as a factory, `optimizer=lambda params: torch.optim.Adagrad(params)`, and gets the model's
named parameters instead. The default learning rates are in `default_learning_rates`.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.config.default_learning_rates import ADAM_LR, HELP, SGD_LR
from manyhands.config.option_declaration import NON_NEGATIVE, POSITIVE, Tags, check_declared, option
from manyhands.errors import ConfigError
from manyhands.value_checks import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch import Tensor

_COMMON = Tags(common=True)
_DECAY = "weight decay"
_MOMENTUM = Range(0.0, 1.0, whole=False, below=True)  # at 1 no gradient is ever forgotten


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum if asked for."""

    name: ClassVar[str] = "sgd"
    lr: float = option(SGD_LR, HELP, POSITIVE, _COMMON)
    momentum: float = option(0.9, "momentum of SGD", _MOMENTUM)
    nesterov: bool = option(False, "Nesterov's momentum")
    weight_decay: float = option(0.0, _DECAY, NON_NEGATIVE)

    def __post_init__(self) -> None:
        check_declared(self)
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov is given, but momentum is 0; give a momentum, or leave it")

    def build(self, params: Any, *, cuda: bool = False) -> torch.optim.Optimizer:
        """Return torch's optimizer over `params`, which may be on a GPU."""
        import torch

        return _unwrap_class(torch.optim.SGD, _descend)(params, **asdict(self), **_for_device(cuda))


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015)."""

    name: ClassVar[str] = "adam"
    lr: float = option(ADAM_LR, HELP, POSITIVE, _COMMON)
    weight_decay: float = option(0.0, _DECAY, NON_NEGATIVE)

    def __post_init__(self) -> None:
        check_declared(self)

    def build(self, params: Any, *, cuda: bool = False) -> torch.optim.Optimizer:
        """Return torch's optimizer over `params`, which may be on a GPU."""
        import torch

        return _unwrap_class(torch.optim.Adam)(
            params, **asdict(self), **_for_device(cuda, capturable=True)
        )


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    name: ClassVar[str] = "adamw"
    lr: float = option(ADAM_LR, HELP, POSITIVE, _COMMON)
    weight_decay: float = option(0.01, _DECAY, NON_NEGATIVE)

    def __post_init__(self) -> None:
        check_declared(self)

    def build(self, params: Any, *, cuda: bool = False) -> torch.optim.Optimizer:
        """Return torch's optimizer over `params`, which may be on a GPU."""
        import torch

        return _unwrap_class(torch.optim.AdamW)(
            params, **asdict(self), **_for_device(cuda, capturable=True)
        )


Optimizer = SGD | Adam | AdamW
OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Adam, AdamW)}


def expect_no_closure(optimizer: Any) -> None:
    """Refuse an optimizer that computes the loss several times in a step, such as LBFGS.

    Raises:
        ConfigError: If its `step` cannot be called without a closure.
    """
    try:
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    except (AttributeError, TypeError, ValueError):
        return
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"optimizer is {type(optimizer).__name__}, which needs a closure; expected one that "
            "does not: sgd, adam, adamw, or another class of torch.optim"
        )


def _for_device(cuda: bool, **more: Any) -> dict[str, Any]:
    """Return what makes a step on a GPU one kernel, and on a CPU spares it to ask where it is."""
    return {"fused": True, **more} if cuda else {"foreach": False}


def _descend(optimizer: Any) -> bool:
    """Take the step of torch.optim.SGD, or say that it is for torch's own to take.

    The arithmetic is torch's, call by call, so the bits are. What is left out stands around it:
    lists made for every step, questions about sparse gradients and other machines. For ten thousand
    parameters, after a gradient has filled the caches, that takes longer than the arithmetic.
    """
    known = optimizer.state
    steps = []
    for group in optimizer.param_groups:
        momentum = group["momentum"]
        for w in group["params"]:
            g = w.grad
            v = known[w].get("momentum_buffer") if momentum and w in known else None
            if g is None or g.is_sparse or w.requires_grad or (momentum and v is None):
                return False  # above all the first step, which makes the momentum
            steps.append((group, w, g, v))
    for group, w, g, v in steps:
        w.add_(compute_direction(group, w, g, v), alpha=-group["lr"])
    return True


def compute_direction(group: Mapping[str, Any], w: Tensor, g: Tensor, v: Tensor | None) -> Tensor:
    """Return what torch.optim.SGD goes along, at `w` with gradient `g`; `v` is the momentum."""
    if group["weight_decay"]:
        g = g.add(w, alpha=group["weight_decay"])
    if v is None:
        return g
    v.mul_(group["momentum"]).add_(g, alpha=1 - group["dampening"])
    return g.add(v, alpha=group["momentum"]) if group["nesterov"] else v


@cache
def _unwrap_class(
    kind: Any, direct: Callable[[Any], bool] | None = None
) -> type[torch.optim.Optimizer]:
    """Return torch's optimizer without what is wrapped around its methods for torch.compile.

    The wrappers import torch._dynamo with all its company, only to tell it to look away: over a
    second of every worker's start. Another one names every step to the profiler and looks for
    hooks, which takes as long as the update of ten thousand parameters: it is left out of steps
    that have neither. The methods inside are the same, so the bits are. On a CPU `direct`, where
    given, takes the steps that it can.
    """
    import torch
    from torch.autograd import profiler
    from torch.optim import optimizer as home

    names = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    bare = inspect.unwrap(kind.step)
    watched = torch.optim.Optimizer.profile_hook_step(torch.no_grad()(bare))

    def step(self: Any, closure: Any = None) -> Any:
        if (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or home._global_optimizer_pre_hooks
            or home._global_optimizer_post_hooks
            or profiler._is_profiler_enabled
        ):
            return watched(self, closure)
        if closure is None and direct and not self.defaults["fused"] and direct(self):
            return None
        with torch.no_grad():
            return bare(self, closure)

    step.hooked = True  # type: ignore[attr-defined]
    return type(kind.__name__, (kind,), {**plain, "step": step, "__doc__": kind.__doc__})
