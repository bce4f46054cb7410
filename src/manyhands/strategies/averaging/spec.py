"""What validation reads of averaging: its facts, and what its options refuse."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from manyhands import validate
from manyhands.config.all_reduces import check_allreduce
from manyhands.config.strategy_spec import Scaling, StrategySpec, Supports
from manyhands.errors import ConfigError

Unit = Literal["steps", "epochs"]
Fate = Literal["keep", "average", "reset"]


class AveragingSpec(StrategySpec):
    """The facts and checks of `Averaging`; the options themselves are declared there."""

    supports: ClassVar[Supports] = Supports(
        partition="random-partition",
        resume=True,
        outlives=True,
        torch=True,
        cuda=True,
        private=True,
        join=True,
        lacks={"sync_batchnorm": "gives every worker a model and statistics of its own"},
    )

    period: int | None
    period_unit: Unit
    average_optimizer: Fate
    allreduce: str

    def check_options(self) -> None:
        """Refuse unknown values, and options that would be ignored."""
        validate.one_of(get_args(Unit), period_unit=self.period_unit)
        validate.one_of(get_args(Fate), average_optimizer=self.average_optimizer)
        check_allreduce(self.allreduce)
        for name, value in (("period_unit", "steps"), ("average_optimizer", "keep")):
            if self.period is None and getattr(self, name) != value:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r} without a period, and would be ignored; "
                    f"give a period, or leave {name} out"
                )

    @property
    def lr_scaling(self) -> Scaling:
        """Divided by the workers, who drift apart, unless they meet every so many steps."""
        return "none" if self.period and self.period_unit == "steps" else "inverse"

    def check_join(self) -> None:
        """Refuse epochs as a unit: how long they are only the user's loop knows."""
        if self.period_unit == "epochs":
            raise ConfigError(
                "period_unit is 'epochs', whose length only your own loop knows; expected steps"
            )
