"""What validation reads of gossip: its facts, and what its options refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from manyhands import value_checks
from manyhands.config.strategy_spec import Scaling, StrategySpec, Supports
from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.config.run import RunConfig
    from manyhands.strategies.gossip.topology import Graph

Topology = Literal["ring", "exponential", "complete", "pairs"]
_LACKS = {"sync_batchnorm": "gives every worker a model and statistics of its own"}
_TOGETHER = Supports(
    resume=True,
    outlives=True,
    torch=True,
    cuda=True,
    private=True,
    join=True,
    lacks=_LACKS,
)
_APART = Supports(
    together=False, deterministic=False, partition="random-partition", lacks=_LACKS
)  # workers do not step together


class GossipSpec(StrategySpec):
    """The facts and checks of `Gossip`; the options themselves are declared there."""

    topology: Topology
    overlap: bool
    asynchronous: bool

    def check_options(self) -> None:
        """Refuse options that contradict each other."""
        value_checks.one_of(get_args(Topology), topology=self.topology)
        if self.asynchronous and (self.overlap or self.topology == "pairs"):
            option = "overlap" if self.overlap else "topology pairs"
            raise ConfigError(
                f"asynchronous is given with {option}, which it would ignore: averages of two "
                "while a gradient is computed, are all that it does; leave one of them out"
            )

    @property
    def supports(self) -> Supports:
        """What it can do: less where workers do not step together."""
        return _APART if self.asynchronous else _TOGETHER

    @property
    def lr_scaling(self) -> Scaling:
        """Divided by the workers where these do not step together."""
        return "inverse" if self.asynchronous else "none"

    def validate(self, config: RunConfig) -> None:
        """Refuse a topology that leaves a worker alone, and weights that would not mix."""
        from manyhands.strategies.gossip.topology import check, mixing

        check(mixing(self.graph(config.workers)), name=self.topology)
        if self.topology == "pairs" and config.on_failure == "continue":
            raise ConfigError(
                "topology is 'pairs' with on_failure='continue': without one worker another is "
                "left alone; use ring, exponential or complete"
            )

    def graph(self, workers: int) -> Graph:
        """Return who may talk to whom."""
        from manyhands.strategies.gossip import topology

        edges = topology.graph(self.topology, workers)
        return topology.halves(edges) if self.asynchronous else edges
