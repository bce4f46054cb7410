"""Trains one PyTorch model with many workers, in seven classic ways of parallelising SGD."""

# Imports nothing: until `__main__` handles it, Ctrl-C ends the command with Python's traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from manyhands._version import __version__
    from manyhands.api import fit
    from manyhands.callbacks import StopTraining
    from manyhands.config.optimizers import SGD, Adam, AdamW
    from manyhands.config.privacy import Privacy
    from manyhands.data import Data
    from manyhands.errors import (
        ConfigError,
        DataError,
        DivergedError,
        LaunchError,
        ManyhandsError,
        WorkerError,
    )
    from manyhands.experiments.forecast.predict import predict
    from manyhands.experiments.sweep.compare import compare
    from manyhands.strategies import (
        Averaging,
        Gossip,
        Hogwild,
        Pipeline,
        Sequential,
        Server,
        Strategy,
        Sync,
        TensorParallel,
    )
    from manyhands.training.result import Result
    from manyhands.training.userloop.join import join

# The public names by their home, imported when first asked for: `import manyhands` is quick.
_HOMES = {
    "_version": "__version__",
    "api": "fit",
    "callbacks": "StopTraining",
    "config.optimizers": "SGD Adam AdamW",
    "config.privacy": "Privacy",
    "data": "Data",
    "errors": "ManyhandsError ConfigError DataError LaunchError WorkerError DivergedError",
    "experiments.forecast.predict": "predict",
    "experiments.sweep.compare": "compare",
    "strategies": "Averaging Gossip Hogwild Pipeline Sequential Server Strategy Sync "
    "TensorParallel",
    "training.result": "Result",
    "training.userloop.join": "join",
}

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Averaging",
    "ConfigError",
    "Data",
    "DataError",
    "DivergedError",
    "Gossip",
    "Hogwild",
    "LaunchError",
    "ManyhandsError",
    "Pipeline",
    "Privacy",
    "Result",
    "Sequential",
    "Server",
    "StopTraining",
    "Strategy",
    "Sync",
    "TensorParallel",
    "WorkerError",
    "__version__",
    "compare",
    "fit",
    "join",
    "predict",
]


def __dir__() -> list[str]:
    """Return what there is, loaded or not, for those who look around."""
    return __all__


def __getattr__(name: str) -> "Any":
    import importlib
    import sys

    if name == "sklearn":  # needs an extra, so no star import shall ask for it
        return importlib.import_module("manyhands.sklearn")
    homes = [home for home, names in _HOMES.items() if name in names.split()]
    if not homes:
        raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"manyhands.{homes[0]}"), name)
    setattr(sys.modules[__name__], name, value)
    return value
