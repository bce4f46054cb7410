"""What validation reads of averaging: its facts, its outer options, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from manyhands import value_checks
from manyhands.config.all_reduces import check_allreduce
from manyhands.config.option_declaration import AMOUNT, COUNT, INNER_PART, POSITIVE, Tags, option
from manyhands.config.strategy_spec import Scaling, StrategySpec, Supports
from manyhands.errors import ConfigError
from manyhands.strategies.averaging.outer_optimizer import Kind
from manyhands.value_checks import Range, whole

if TYPE_CHECKING:
    from torch import nn

    from manyhands.config.run import RunConfig

Unit = Literal["steps", "epochs", "seconds"]
Fate = Literal["keep", "average", "reset"]
Precision = Literal["full", "fp16", "bf16", "int8"]

PERIOD = AMOUNT  # what a period may be
_BELOW_ONE = Range(0.0, 1.0, whole=False, below=True)
_NEW = Tags(hashed="if changed")  # sweeps of older versions keep their ids
_OUTER = "outer_optimizer", "outer_precision", "outer_fragments", "outer_delay"
_SUPPORTS = Supports(
    partition="random-partition",
    resume=True,
    outlives=True,
    torch=True,
    cuda=True,
    private=True,
    join=True,
    lacks={"sync_batchnorm": "gives every worker a model and statistics of its own"},
)


@dataclass(frozen=True, kw_only=True, repr=False)
class AveragingSpec(StrategySpec):
    """The facts, outer options and checks of `Averaging`, which declares the others."""

    name: ClassVar[str] = "averaging"
    exchange_share: float | None = option(
        None,
        "largest part of the time that exchanges may take; measures, and chooses the period",
        INNER_PART,
        _NEW,
    )
    outer_optimizer: Kind = option(
        "none",
        "optimizer of the common parameters, along the average difference (DiLoCo); none: take "
        "the average",
        tags=_NEW,
    )
    outer_lr: float | None = option(
        None, "rate of the outer optimizer; by default 0.7 for sgd and 0.3 for adam", POSITIVE, _NEW
    )
    outer_momentum: float | None = option(
        None,
        "Nesterov momentum of outer sgd, beta1 of outer adam; by default 0.9",
        _BELOW_ONE,
        _NEW,
    )
    outer_precision: Precision = option(
        "full", "how differences travel; fp16, bf16 and int8 round them", tags=_NEW
    )
    outer_fragments: int = option(
        1, "fragments of the parameters, which are exchanged in turn", COUNT, _NEW
    )
    outer_delay: int = option(
        0, "steps that go on while an exchange is under way", whole(0, 10**12), _NEW
    )
    outer_mix: float | None = option(
        None, "part of its own parameters that a worker keeps after a delay; by default 0.5",
        _BELOW_ONE, _NEW,
    )  # fmt: skip

    if TYPE_CHECKING:  # `Averaging` declares them
        period: int | None
        period_unit: Unit
        average_optimizer: Fate
        allreduce: str

    @property
    def measured(self) -> bool:
        """Whether the period is measured."""
        return self.exchange_share is not None or self.period_unit == "seconds"

    @property
    def outer(self) -> bool:
        """Whether the workers have parameters in common that differ from their average."""
        return any(getattr(self, name) != getattr(AveragingSpec, name) for name in _OUTER)

    @property
    def streams(self) -> bool:
        """Whether exchanges are under way while steps go on, or fragments take turns."""
        return self.outer_fragments > 1 or self.outer_delay > 0

    @property
    def mix(self) -> float:
        """The part of its own parameters that a worker keeps when a difference arrives."""
        if not self.outer_delay:
            return 0.0
        return 0.5 if self.outer_mix is None else self.outer_mix

    @property
    def supports(self) -> Supports:
        """What it can do: less where times decide, or the host's memory is needed."""
        encoded = self.streams or self.outer_precision != "full"
        return replace(_SUPPORTS, deterministic=not self.measured, cuda=not encoded)

    def check_options(self) -> None:
        """Refuse unknown values, options that would be ignored, and what cannot work."""
        value_checks.one_of(get_args(Unit), period_unit=self.period_unit)
        value_checks.one_of(get_args(Fate), average_optimizer=self.average_optimizer)
        check_allreduce(self)
        value_checks.one_of(get_args(Kind), outer_optimizer=self.outer_optimizer)
        value_checks.one_of(get_args(Precision), outer_precision=self.outer_precision)
        self._check_period()
        self._check_outer()
        if self.streams:
            self._check_streams()

    def _check_period(self) -> None:
        """Refuse two periods, and what needs one."""
        if self.exchange_share is not None:
            if self.period is not None or self.period_unit != "steps":
                raise ConfigError(
                    f"exchange_share is {self.exchange_share:g}, which chooses the period, but "
                    f"period is {self.period} in {self.period_unit}; leave one of them out"
                )
            return
        for name in ("period_unit", "average_optimizer", *_OUTER):
            value, default = getattr(self, name), getattr(type(self), name)
            if self.period is None and value != default:
                raise ConfigError(
                    f"{name} is {value!r} without a period, and would be ignored; "
                    f"give a period, or leave {name} out"
                )

    def _check_outer(self) -> None:
        """Refuse outer options that would be ignored."""
        for name in ("outer_lr", "outer_momentum"):
            value = getattr(self, name)
            if value is not None and self.outer_optimizer == "none":
                raise ConfigError(
                    f"{name} is {value:g} without an outer optimizer, and would be ignored; give "
                    f"outer_optimizer sgd or adam, or leave {name} out"
                )
        if self.outer_mix is not None and not self.outer_delay:
            raise ConfigError(
                f"outer_mix is {self.outer_mix:g} with outer_delay 0, and would be ignored: "
                "without a delay a worker has taken no steps since; give outer_delay, or leave "
                "outer_mix out"
            )
        encoded = self.streams or self.outer_precision != "full"
        if encoded and self.allreduce != "auto":
            raise ConfigError(
                f"allreduce is {self.allreduce!r}, but fragments, a delay and a lower precision "
                "have an exchange of their own; leave allreduce out"
            )

    def _check_streams(self) -> None:
        """Refuse fragments and delays that do not fit into a period."""
        streaming = {n: getattr(self, n) for n in ("outer_fragments", "outer_delay")}
        name, value = next(
            (name, value) for name, value in streaming.items() if value != getattr(type(self), name)
        )
        if self.measured or self.period_unit != "steps":
            raise ConfigError(
                f"{name} is {value}, which needs to know the period in steps; give period with "
                f"period_unit steps, or leave {name} out"
            )
        if self.average_optimizer != "keep":
            raise ConfigError(
                f"average_optimizer is {self.average_optimizer!r}, but {name} is {value}, and only "
                "parameters travel in fragments or with a delay; expected keep"
            )
        assert self.period is not None
        if self.outer_fragments > self.period:
            raise ConfigError(
                f"outer_fragments is {self.outer_fragments} with period {self.period}; expected at "
                "most one fragment per step: fewer fragments, or a longer period"
            )
        if self.outer_delay >= self.period:
            raise ConfigError(
                f"outer_delay is {self.outer_delay} with period {self.period}; expected less than "
                "the period: a fragment must arrive before it is sent again"
            )

    def check_module(self, module: nn.Module) -> None:
        """Refuse more fragments than parameters."""
        from torch.nn.parameter import is_lazy

        trained = [p for p in module.parameters() if p.requires_grad]
        if not any(is_lazy(p) for p in trained):
            self.check_fragments(sum(p.numel() for p in trained))

    def check_fragments(self, dim: int) -> None:
        """Refuse more fragments than parameters."""
        if self.outer_fragments > dim:
            raise ConfigError(
                f"outer_fragments is {self.outer_fragments}, but the model has {dim:,} parameters; "
                "expected at most as many"
            )

    def validate(self, config: RunConfig) -> None:
        """Refuse a GPU where it does not help, and a period that reveals a private run's sample."""
        if config.device == "cuda" and not self.supports.cuda:
            raise ConfigError(
                "device is 'cuda', but outer_precision, outer_fragments and outer_delay exchange "
                "through the host's memory; leave them out, or use the cpu"
            )
        if config.privacy and self.measured:
            shown = (
                "period_unit is 'seconds'"
                if self.exchange_share is None
                else f"exchange_share is {self.exchange_share:g}"
            )
            raise ConfigError(
                f"{shown} in a private run: how long steps take tells how many records they had, "
                "and the model would depend on it; give a period in steps or epochs"
            )

    @property
    def lr_scaling(self) -> Scaling:
        """Divided by the workers, who drift apart, unless they meet every so many steps."""
        if self.exchange_share is not None:
            return "none"
        return "none" if self.period and self.period_unit != "epochs" else "inverse"

    def check_join(self) -> None:
        """Refuse epochs as a unit: how long they are only the user's loop knows."""
        if self.period_unit == "epochs":
            raise ConfigError(
                "period_unit is 'epochs', whose length only your own loop knows; expected steps"
            )

    def __repr__(self) -> str:
        """Name the options; those of newer versions only where they are set.

        Checkpoints of a user's own loop compare it.
        """
        new = {f.name for f in fields(AveragingSpec)}
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name not in new or getattr(self, f.name) != f.default
        ]
        return f"{type(self).__qualname__}({', '.join(shown)})"
