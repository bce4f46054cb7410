"""The strategies, by name; each one is a file or a package of this folder."""

from __future__ import annotations

from manyhands.config.options import register
from manyhands.strategies.averaging.averaging import Averaging
from manyhands.strategies.gossip.d_psgd import Gossip
from manyhands.strategies.hogwild.hogwild import Hogwild
from manyhands.strategies.pipeline.pipeline import Pipeline
from manyhands.strategies.sequential import Sequential
from manyhands.strategies.server.server import Server
from manyhands.strategies.strategy import Strategy, Supports
from manyhands.strategies.sync.sync import Sync
from manyhands.strategies.tensor.tensor import TensorParallel

_KINDS = (Sequential, Sync, Averaging, Gossip, Server, Hogwild, Pipeline, TensorParallel)
STRATEGIES: dict[str, type[Strategy]] = {kind.name: kind for kind in _KINDS}
register(_KINDS)

__all__ = [
    "STRATEGIES",
    "Averaging",
    "Gossip",
    "Hogwild",
    "Pipeline",
    "Sequential",
    "Server",
    "Strategy",
    "Supports",
    "Sync",
    "TensorParallel",
]
