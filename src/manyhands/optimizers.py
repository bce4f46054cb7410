"""Optimizers as frozen data, so that they travel, print and compare; each builds torch.optim's own.

All three work element by element, so they run on the flat parameter vector. Any other optimizer is
given as a factory, `optimizer=lambda params: torch.optim.Adagrad(params)`, and gets the model's
named parameters instead.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands import validate

if TYPE_CHECKING:
    import torch

_LR = "learning rate"
_DECAY = "weight decay"


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum if asked for."""

    name: ClassVar[str] = "sgd"
    lr: float = field(default=0.05, metadata={"help": _LR})
    momentum: float = field(default=0.9, metadata={"help": "momentum of SGD"})
    nesterov: bool = field(default=False, metadata={"help": "Nesterov's momentum"})
    weight_decay: float = field(default=0.0, metadata={"help": _DECAY})

    def __post_init__(self) -> None:
        validate.positive(lr=self.lr)
        validate.non_negative(momentum=self.momentum, weight_decay=self.weight_decay)

    def build(self, params: Any) -> torch.optim.Optimizer:
        """Return torch's optimizer over `params`."""
        import torch

        return _light(torch.optim.SGD, params, **asdict(self))


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015)."""

    name: ClassVar[str] = "adam"
    lr: float = field(default=0.001, metadata={"help": _LR})
    weight_decay: float = field(default=0.0, metadata={"help": _DECAY})

    def __post_init__(self) -> None:
        validate.positive(lr=self.lr)
        validate.non_negative(weight_decay=self.weight_decay)

    def build(self, params: Any) -> torch.optim.Optimizer:
        """Return torch's optimizer over `params`."""
        import torch

        return _light(torch.optim.Adam, params, **asdict(self))


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    name: ClassVar[str] = "adamw"
    lr: float = field(default=0.001, metadata={"help": _LR})
    weight_decay: float = field(default=0.01, metadata={"help": _DECAY})

    def __post_init__(self) -> None:
        validate.positive(lr=self.lr)
        validate.non_negative(weight_decay=self.weight_decay)

    def build(self, params: Any) -> torch.optim.Optimizer:
        """Return torch's optimizer over `params`."""
        import torch

        return _light(torch.optim.AdamW, params, **asdict(self))


def _light(kind: Any, params: Any, **options: Any) -> torch.optim.Optimizer:
    """Return torch's optimizer, without what it wraps around its methods for torch.compile.

    Those wrappers import the whole compiler, only to tell it to look away: it would be half of the
    time that a worker needs to start. The mathematics are untouched: the very same methods run.
    """
    import torch

    for wrapped in (kind.add_param_group, kind.state_dict, kind.load_state_dict, kind.zero_grad):
        plain = inspect.unwrap(wrapped)
        vars(plain).setdefault("__dynamo_disable", plain)  # where torch._disable_dynamo looks first
    optimizer: torch.optim.Optimizer = kind(params, **options)
    optimizer.step = MethodType(  # type: ignore[method-assign]
        torch.no_grad()(inspect.unwrap(kind.step)), optimizer
    )
    return optimizer


Optimizer = SGD | Adam | AdamW
OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Adam, AdamW)}
