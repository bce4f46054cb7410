"""The configuration of one run; the same fields serve keyword arguments, flags and TOML."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from manyhands import value_checks
from manyhands.config.optimizers import SGD, Optimizer
from manyhands.config.option_declaration import check_declared, find_tagged
from manyhands.config.parse import Every, parse_evaluate_every
from manyhands.config.run_options import (
    Division,
    Machine,
    Records,
    Recovery,
    Stopping,
    Task,
    Training,
)
from manyhands.config.strategy_spec import StrategySpec
from manyhands.errors import ConfigError
from manyhands.launch.hosts import Hosts, hosts_from_options

if TYPE_CHECKING:
    from manyhands.config.privacy import Privacy

# The models that come with manyhands (see models.py), and their layers with parameters.
MODELS = {
    "cnn": ("conv1", "conv2", "fc1", "fc2"),
    "mlp": ("fc1", "fc2", "fc3"),
    "logistic": ("fc1",),
    "mlp6": ("fc1", "fc2", "fc3", "fc4", "fc5", "fc6"),
    "tanh-cnn": ("conv1", "conv2", "fc1", "fc2"),
}
# The convolutional ones take square pictures; the least height and width of these, in pixels.
SMALLEST_PICTURES = {"cnn": 20, "tanh-cnn": 16}
LOSSES = ("cross-entropy", "nll", "mse", "mae", "bce")
METRICS = ("accuracy", "top-K", "f1", "mse", "mae", "auroc")
SCHEDULES = ("constant", "linear", "cosine", "step")
_LIBRARIES = ("default", "native", "nnpack", "channels-last", "native-channels-last")
_OURS = r"(pool|(pool\+)?gemm(:[^,+]+(,[^,+]+)*)?)"
KERNELS = ("auto", *_LIBRARIES, "compile", "graphs")


def _check_kernels(kernels: str) -> None:
    """Refuse kernels that nobody knows; a name may be followed by "+pool", then by "+gemm …"."""
    base, plus, ours = kernels.partition("+")
    if not plus:
        value_checks.one_of(KERNELS, kernels=kernels)
    elif base not in _LIBRARIES or not re.fullmatch(_OURS, ours):
        raise ConfigError(
            f"kernels is {kernels!r}; expected one of {', '.join(_LIBRARIES)} before +pool and "
            "+gemm, and behind +gemm nothing or :LAYER,LAYER"
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig(Records, Recovery, Machine, Division, Stopping, Training, Task):
    """Everything that decides one run, but for the strategy's and the optimizer's own options."""

    strategy: StrategySpec
    optimizer: Optimizer | Callable[..., Any] = field(default_factory=SGD)
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        check_declared(self)
        if ":" not in self.schedule:
            value_checks.one_of(SCHEDULES, schedule=self.schedule)
        if self.loss is not None and ":" not in self.loss:
            value_checks.one_of(LOSSES, loss=self.loss)
        _check_kernels(self.kernels)
        parse_evaluate_every(self.evaluate_every)
        value_checks.words(mpiexec_options=self.mpiexec_options)

    @property
    def evaluations(self) -> Every:
        """How often the model is evaluated on the test set."""
        return parse_evaluate_every(self.evaluate_every)

    @property
    def places(self) -> Hosts | None:
        """The hosts to start the processes on; None means this one alone."""
        if self.strategy.supports.shares_memory:
            return None
        return hosts_from_options(self.hosts, self.hostfile, self.launcher, self.interface)

    @property
    def processes(self) -> int:
        """How many processes take part, masters and stages included."""
        return self.strategy.processes(self.workers)

    @property
    def partition_kind(self) -> str:
        """How the data is divided: as asked for, or privacy's or the strategy's own way."""
        if self.stream is not None:
            return "streamed"
        return self.partition or self.partitions[0]

    @property
    def partitions(self) -> tuple[str, ...]:
        """How the data may be divided where that is not free, and first the default."""
        facts = self.strategy.supports
        if self.privacy is None:
            return (facts.partition,)
        return self.privacy.partitions(beside=facts.beside, exposure=self.strategy.exposure)


# What a run may ask of any strategy, and a strategy may lack: a loss of (model, batch), batches of
# several tensors, and the options that change how a gradient is computed and used.
FEATURES = ("model_loss", "tensors", *find_tagged(RunConfig, lambda tags: tags.feature))
