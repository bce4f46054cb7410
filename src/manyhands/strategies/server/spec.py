"""What validation reads of the parameter server: its facts, and what its options refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.config.parse import parse_slow
from manyhands.config.strategy_spec import Exposure, Scaling, StrategySpec, Supports
from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.config.run import RunConfig

_SUPPORTS = Supports(
    whole_batches=True,
    together=False,
    partition="random-partition",
    private=True,
    resume=True,
    outlives=True,
    lacks={"sync_batchnorm": "has workers that do not step together"},
)


class ServerSpec(StrategySpec):
    """The facts and checks of `Server`; the options themselves are declared there."""

    masters: int
    staleness: int | None
    staleness_aware: bool
    prefetch: int
    layerwise: bool

    @property
    def supports(self) -> Supports:
        """What it can do: the same each time only where masters wait for every push."""
        return replace(_SUPPORTS, deterministic=self.staleness == 0)

    def check_options(self) -> None:
        """Refuse options that contradict each other."""
        if self.staleness == 0 and self.prefetch:
            raise ConfigError(
                "prefetch is given with staleness=0, which promises that no push is stale; leave "
                "one of them out"
            )
        if self.staleness == 0 and self.staleness_aware:
            raise ConfigError(
                "staleness_aware is given with staleness=0, where no push is stale; it would be "
                "ignored: leave one of them out"
            )

    def validate(self, config: RunConfig) -> None:
        """Refuse to send layers ahead where a gradient is ready only as a whole."""
        if self.prefetch and config.on_failure == "continue":
            raise ConfigError(
                "prefetch is given with on_failure='continue': a push that is still under way when "
                "somebody dies would be lost; leave one of them out"
            )
        if not self.layerwise:
            return
        if config.on_failure == "continue":
            raise ConfigError(
                "layerwise is given with on_failure='continue': of a worker that dies, half a push "
                "could be used; leave one of them out"
            )
        reasons = {
            "privacy": "a private gradient may leave only when its noise is in",
            "clip_norm": "a gradient's length is known only when all of it is there",
        }
        if config.accumulate > 1:
            raise ConfigError(
                f"layerwise is given with accumulate {config.accumulate}, but a layer's gradient "
                "is ready only after the last piece; leave one of them out"
            )
        if config.slow is not None and not parse_slow(config.slow).sleep:
            reasons["slow"] = "a gradient that is computed again would be sent again; add :sleep"
        for name, reason in reasons.items():
            if (value := getattr(config, name)) is not None:
                raise ConfigError(
                    f"layerwise is given with {name} {value!r}, but {reason}; leave one of them out"
                )

    @property
    def lr_scaling(self) -> Scaling:
        """Divided by the workers, unless no push is stale or each is divided by its staleness."""
        return "none" if self.staleness == 0 or self.staleness_aware else "inverse"

    @property
    def exposure(self) -> Exposure:
        """With s = 0 the masters use nothing but the sum of all pushes; else every push."""
        return "masters" if self.staleness == 0 else "each"

    def check_model(self, *, layers: Sequence[str]) -> None:
        """Refuse masters that would own nothing."""
        if self.masters > len(layers):
            raise ConfigError(
                f"masters is {self.masters}, but the model has {len(layers)} layers with "
                f"parameters and a master owns one at least; use {len(layers)} masters at most"
            )

    def processes(self, workers: int) -> int:
        """Return workers and masters together."""
        return workers + self.masters

    def examples_per_update(self, batch_size: int, workers: int) -> int:
        """Return a push's, or where masters wait for all of them everybody's."""
        return batch_size * workers if self.staleness == 0 else batch_size
