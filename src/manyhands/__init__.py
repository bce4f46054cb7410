"""Trains one PyTorch model with many workers, in every classic way of parallelising SGD."""

# Imports nothing: until `__main__` handles it, Ctrl-C ends the command with Python's traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from manyhands._version import __version__
    from manyhands.api import fit
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
        Sync,
        TensorParallel,
    )
    from manyhands.training.result import Result
    from manyhands.training.userloop.hands import join

# Where each public name lives: imported when first asked for, so that `import manyhands` is quick.
_HOMES = {
    "fit": "manyhands.api",
    "join": "manyhands.training.userloop.hands",
    "compare": "manyhands.experiments.sweep.compare",
    "predict": "manyhands.experiments.forecast.predict",
    "Result": "manyhands.training.result",
    "Data": "manyhands.data",
    "SGD": "manyhands.config.optimizers",
    "Adam": "manyhands.config.optimizers",
    "AdamW": "manyhands.config.optimizers",
    "Privacy": "manyhands.config.privacy",
    "Averaging": "manyhands.strategies",
    "Gossip": "manyhands.strategies",
    "Hogwild": "manyhands.strategies",
    "Pipeline": "manyhands.strategies",
    "Sequential": "manyhands.strategies",
    "Server": "manyhands.strategies",
    "Sync": "manyhands.strategies",
    "TensorParallel": "manyhands.strategies",
    "ManyhandsError": "manyhands.errors",
    "ConfigError": "manyhands.errors",
    "DataError": "manyhands.errors",
    "LaunchError": "manyhands.errors",
    "WorkerError": "manyhands.errors",
    "DivergedError": "manyhands.errors",
    "__version__": "manyhands._version",
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
    if name not in _HOMES:
        raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
    import importlib
    import sys

    value = getattr(importlib.import_module(_HOMES[name]), name)

    setattr(sys.modules[__name__], name, value)
    return value
