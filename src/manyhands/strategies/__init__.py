"""The strategies, by name, and what your own strategy is made of.

Public: `Strategy` and its abilities `Checkpointable`, `Regroupable`, `Asynchronous`, `Recoverable`
and `SplitsModel`; `Supports`, `Exposure`, `Scaling` and `Cost` for its facts; `option` with the
ranges `Range` and `whole`, `Tags`, `all_reduce_option` and `check_declared` for its options;
`describe_staleness` for the record of workers that do not wait; `WorkerView` and `BatchShare` for
annotations.

To add a strategy to manyhands, add its row to the imports below: the help lists the strategies in
this order.
"""

from __future__ import annotations

from manyhands.config.all_reduces import all_reduce_option as all_reduce_option
from manyhands.config.option_declaration import Tags as Tags
from manyhands.config.option_declaration import check_declared as check_declared
from manyhands.config.option_declaration import option as option
from manyhands.config.strategy_spec import Cost as Cost
from manyhands.config.strategy_spec import Exposure as Exposure
from manyhands.config.strategy_spec import Scaling as Scaling
from manyhands.config.strategy_table import register
from manyhands.strategies.staleness import describe_staleness as describe_staleness
from manyhands.strategies.strategy import BatchShare as BatchShare
from manyhands.strategies.strategy import Strategy as Strategy
from manyhands.strategies.strategy import Supports as Supports
from manyhands.strategies.strategy import WorkerView as WorkerView
from manyhands.value_checks import Range as Range
from manyhands.value_checks import whole as whole
from manyhands.worker.abilities import Asynchronous as Asynchronous
from manyhands.worker.abilities import Checkpointable as Checkpointable
from manyhands.worker.abilities import Recoverable as Recoverable
from manyhands.worker.abilities import Regroupable as Regroupable
from manyhands.worker.abilities import SplitsModel as SplitsModel

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

__all__ = [
    "Asynchronous",
    "BatchShare",
    "Checkpointable",
    "Cost",
    "Exposure",
    "Range",
    "Recoverable",
    "Regroupable",
    "Scaling",
    "SplitsModel",
    "Strategy",
    "Supports",
    "Tags",
    "WorkerView",
    "all_reduce_option",
    "check_declared",
    "describe_staleness",
    "option",
    "whole",
]

STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in tuple(globals().values())
    if isinstance(kind, type) and issubclass(kind, Strategy) and kind is not Strategy
}
register(STRATEGIES.values())
