"""The strategies, by name; each one is a file or a package of this folder.

To add one, add its row to the imports below: the help lists the strategies in this order.
"""

from __future__ import annotations

from manyhands.config.options import register
from manyhands.strategies.strategy import Strategy as Strategy
from manyhands.strategies.strategy import Supports as Supports

# isort: off
from manyhands.strategies.sequential import Sequential as Sequential
from manyhands.strategies.sync.sync import Sync as Sync
from manyhands.strategies.averaging.averaging import Averaging as Averaging
from manyhands.strategies.gossip.d_psgd import Gossip as Gossip
from manyhands.strategies.server.server import Server as Server
from manyhands.strategies.hogwild.hogwild import Hogwild as Hogwild
from manyhands.strategies.pipeline.pipeline import Pipeline as Pipeline
from manyhands.strategies.tensor.tensor import TensorParallel as TensorParallel
# isort: on

STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in tuple(globals().values())
    if isinstance(kind, type) and issubclass(kind, Strategy) and kind is not Strategy
}
register(STRATEGIES.values())
