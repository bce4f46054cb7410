"""What a run's options refuse of each other, before anything is started."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from manyhands.config.all_reduces import check_allreduce, chosen_all_reduce, is_own
from manyhands.config.parse import parse_every, parse_slow
from manyhands.errors import ConfigError

if TYPE_CHECKING:
    from manyhands.config.privacy import Privacy
    from manyhands.config.run import RunConfig

PROFILED = 500  # steps that a profile holds at the most


def check(config: RunConfig) -> None:
    """Refuse options that contradict each other, or would be ignored."""
    _check_batch(config)
    _check_validation(config)
    _check_stream(config)
    _check_target(config)
    _check_features(config)
    _check_steps(config)
    _check_profile(config)
    check_allreduce(config.strategy)
    config.strategy.validate(config)
    _check_speeds(config)
    _check_lifecycle(config)
    _check_hosts(config)
    _check_device(config)
    if config.comm not in ("auto", "mpi"):
        check_torch(config, f"comm is {config.comm!r}")
    if config.tensorboard and find_spec("tensorboard") is None:
        raise ConfigError(
            "tensorboard is not installed: run pip install '.[tensorboard]' in the checkout"
        )
    if config.privacy:
        _check_privacy(config, config.privacy)


def replace_options(config: RunConfig, **changes: Any) -> RunConfig:
    """Return the configuration with some options changed, once that is checked."""
    changed = replace(config, **changes)
    check(changed)
    return changed


def _check_batch(config: RunConfig) -> None:
    """Refuse batches and workers that do not go together, or not with the strategy."""
    facts = config.strategy.supports
    if "+" in config.kernels and (config.autocast or config.device != "cpu"):
        raise ConfigError(
            f"kernels is {config.kernels!r}, which is for CPUs and without autocast; expected "
            f"device cpu, or {config.kernels.partition('+')[0]}"
        )
    if config.workers > 1 and not facts.many:
        raise ConfigError(
            f"workers is {config.workers}, but {config.strategy.name} uses one worker; "
            "expected workers=1 or another strategy"
        )
    if not facts.whole_batches and config.batch_size < config.workers:
        raise ConfigError(
            f"batch_size is {config.batch_size} for {config.workers} workers; expected at least "
            "one example per worker: raise batch_size or lower workers"
        )
    if config.clip_norm is not None and config.privacy:
        raise ConfigError(
            f"clip_norm is {config.clip_norm} in a private run, which clips each example's "
            "gradient (clip); leave it out"
        )


def _check_validation(config: RunConfig) -> None:
    """Refuse a held-out part that reveals private records."""
    if config.validation is not None and config.privacy:
        raise ConfigError(
            f"validation is {config.validation} in a private run: validation figures would reveal "
            "training records; use public data as the test set"
        )


def _check_stream(config: RunConfig) -> None:
    """Refuse a stream of what must be drawn from all rows."""
    if config.stream is None:
        return
    reason = ""
    if config.stream < config.batch_size:
        reason = f"a batch has {config.batch_size} examples, which it must hold"
    elif config.privacy:
        reason = "a private run draws Poisson samples of all records, not of a buffer"
    elif config.partition not in (None, "streamed"):
        reason = f"partition is {config.partition!r}; streams are divided by row groups"
    elif config.limit is not None or config.validation is not None or config.shares is not None:
        reason = "limit, validation and shares choose among all rows"
    elif config.device == "cuda":
        reason = "device is 'cuda', and streams feed the CPU only"
    elif config.on_failure == "continue":
        reason = "on_failure is 'continue', and nobody takes a dead worker's row groups"
    if reason:
        raise ConfigError(f"stream is {config.stream}, but {reason}: leave one of them out")


def _check_features(config: RunConfig) -> None:
    """Refuse what the strategy cannot do, with its reason."""
    for f in fields(config):
        reason = config.strategy.supports.lacks.get(f.name)
        value = getattr(config, f.name)
        if reason and value != f.default:
            raise ConfigError(
                f"{f.name} is {value!r}, but {config.strategy.name} {reason}; leave it out"
            )


def _check_steps(config: RunConfig) -> None:
    """Refuse what would do nothing, of what decides how a step is computed."""
    split = 1 if config.strategy.supports.whole_batches else config.workers
    if config.accumulate > max(1, config.batch_size // split):
        raise ConfigError(
            f"accumulate is {config.accumulate}, but a worker's part of a batch has "
            f"{config.batch_size // split} examples; expected at most that many pieces"
        )
    if config.no_decay is not None and not getattr(config.optimizer, "weight_decay", 0.0):
        raise ConfigError(
            f"no_decay is {config.no_decay!r}, but the optimizer has no weight_decay; give "
            "sgd, adam or adamw with weight_decay, or leave it out"
        )
    if config.sync_batchnorm and config.kernels == "graphs":
        raise ConfigError(
            "kernels is 'graphs' with sync_batchnorm, whose exchanges within a step cannot be "
            "captured; leave one of them out"
        )
    if config.autocast and config.dtype != "float32":
        raise ConfigError(f"autocast is given with dtype {config.dtype}; expected float32")
    if ":" in config.schedule and config.warmup:
        raise ConfigError(
            f"warmup is {config.warmup}, but schedule is {config.schedule}, which decides the "
            "whole run; leave one of them out"
        )


def _check_target(config: RunConfig) -> None:
    """Refuse targets that nothing could reach."""
    if config.target is not None and config.target_accuracy is not None:
        raise ConfigError("target and target_accuracy are both given; expected one of them")
    first = (config.metric or "accuracy").split(",")[0]
    if config.target_accuracy is not None and first != "accuracy":
        raise ConfigError(
            f"target_accuracy is {config.target_accuracy}, but the metric is {first}; give "
            "target, or accuracy as the first metric"
        )


def _check_profile(config: RunConfig) -> None:
    """Refuse a profile of too many steps, or of a run whose sample is secret."""
    if not config.profile:
        return
    if config.max_steps is None or config.max_steps > PROFILED:
        raise ConfigError(
            f"profile is given with max_steps {config.max_steps}; every operation is kept, so "
            f"expected max_steps of at most {PROFILED}"
        )
    if config.privacy and config.privacy.fixed_key is None:
        raise ConfigError(
            "profile is given in a private run, where the time of a step reveals how many records "
            "were drawn; leave it out, or add fixed_key: the run takes the same time, and its "
            "record calls it NOT PRIVATE"
        )


def _check_speeds(config: RunConfig) -> None:
    """Refuse to slow down, or to balance, what cannot be."""
    if config.slow is not None and parse_slow(config.slow).rank >= config.workers:
        raise ConfigError(
            f"slow is {config.slow!r}, but there are {config.workers} workers; expected a rank "
            f"from 0 to {config.workers - 1}"
        )
    shared = config.strategy.supports.shares_memory
    if config.slow and shared and not parse_slow(config.slow).sleep:
        raise ConfigError(
            f"slow is {config.slow!r}, but {config.strategy.name} workers share one vector, which "
            f"trying a gradient again would disturb; expected {config.slow}:sleep"
        )
    if config.balance == "none":
        return
    reason = ""
    if not config.strategy.supports.balance:
        reason = f"{config.strategy.name} has no sum of gradients that would stay the same"
    elif config.privacy:
        reason = "a private run samples all records at one rate"
    elif config.partition_kind != "balanced":
        reason = f"partition {config.partition_kind} fixes who sees what; use balanced"
    elif config.shares is not None:
        reason = "shares are given, which fix the parts"
    if reason:
        raise ConfigError(f"balance is {config.balance!r}, but {reason}: leave one of them out")


def _check_lifecycle(config: RunConfig) -> None:
    """Refuse checkpoints that nobody could go on from, and to go on without them."""
    if config.checkpoint_every is not None:
        parse_every(config.checkpoint_every)
        if not config.strategy.supports.resume:
            raise ConfigError(
                f"checkpoint_every is {config.checkpoint_every!r}, but {config.strategy.name} runs "
                "cannot resume from a checkpoint; leave it out"
            )
    elif config.on_failure == "restart":
        raise ConfigError("on_failure is 'restart'; that needs checkpoint_every, e.g. 200steps")
    if config.min_workers is not None and (reason := _find_rejoin_obstacle(config)):
        raise ConfigError(f"min_workers is {config.min_workers}, but {reason}")
    if config.on_failure == "continue" and (reason := _find_survival_obstacle(config)):
        raise ConfigError(f"on_failure is 'continue', but {reason}")


def _find_rejoin_obstacle(config: RunConfig) -> str:
    """Return why a run that has lost workers could not have them again, and what to do."""
    wanted = config.min_workers or 0
    if config.on_failure != "continue":
        return f"on_failure is {config.on_failure!r}; use 'continue', or leave it out"
    if wanted > config.workers:
        return f"workers is {config.workers}; expected at most as many"
    if config.checkpoint_every is None:
        return "workers come back at a checkpoint; add checkpoint_every, e.g. 200steps"
    if not config.strategy.supports.together:
        name = config.strategy.name
        return f"only a {name} run itself knows who took over what of the dead; leave it out"
    return ""


def _find_survival_obstacle(config: RunConfig) -> str:
    """Return why those who are left could not go on when a worker dies, and what to do."""
    windows = ("shared-memory", "hierarchical")
    algorithm = chosen_all_reduce(config.strategy)
    restart = "use on_failure='restart'"
    if not config.strategy.supports.outlives:
        return f"{config.strategy.name} cannot continue without one of its processes; {restart}"
    if config.privacy:
        return f"in a private run every worker's noise is part of the promise; {restart}"
    if config.mpi == "mpich":
        return "MPICH ends all processes when one dies; use mpi='openmpi'"
    if config.device != "cpu":
        return f"a GPU's steps cannot be taken back; {restart}"
    if config.comm not in ("auto", "mpi"):
        return f"over {config.comm} a death is everybody's end; leave comm out"
    if config.places:
        return f"that is not there yet for several hosts; {restart}"
    if config.balance != "none":
        return "balance needs speeds of workers that stay; leave one of them out"
    if is_own(algorithm):
        return f"your own all-reduce may hang when a worker dies; {restart}"
    if algorithm in windows:
        return f"allreduce {algorithm} needs memory shared with the dead; leave it out"
    if config.tensorboard:
        return "worker 0 writes for tensorboard, and may be the one that dies; leave it out"
    return ""


def _check_device(config: RunConfig) -> None:
    """Refuse what is for the other kind of device."""
    if config.device == "cpu":
        if config.comm == "torch:nccl":
            raise ConfigError("comm is 'torch:nccl', which is for GPUs; add device cuda")
        if config.kernels == "graphs":
            raise ConfigError("kernels is 'graphs', which is for GPUs; add device cuda")
        if config.deterministic:
            raise ConfigError(
                "deterministic is for GPUs; runs on CPUs need no option for it; add device cuda"
            )
        return
    if config.device == "cuda" and not config.strategy.on_gpu(config):
        another, so = "strategy", ""
        if config.strategy.supports.cuda:
            another, so = "optimizer", " with an optimizer of one's own"
        raise ConfigError(
            f"device is 'cuda', but {config.strategy.name} computes on CPUs only{so}; expected "
            f"cpu, or another {another}"
        )
    if config.kernels.startswith("native"):
        raise ConfigError(
            f"kernels is {config.kernels!r} with device {config.device!r}; native switches oneDNN "
            "off, which is for CPUs: expected auto, default, channels-last, compile or graphs"
        )


def check_torch(config: RunConfig, reason: str) -> None:
    """Refuse what does not run over torch.distributed; `reason` says why it would have to."""
    if not config.strategy.supports.torch:
        raise ConfigError(
            f"{reason}, but {config.strategy.name} does not run over torch.distributed; expected "
            "MPI"
        )
    algorithm = chosen_all_reduce(config.strategy)
    if algorithm != "auto":
        raise ConfigError(
            f"{reason}, and torch.distributed has its own all-reduce, but allreduce is "
            f"{algorithm!r}; leave one of them out"
        )


def _check_hosts(config: RunConfig) -> None:
    """Refuse hosts that are named twice, are too few, or would be ignored."""
    if config.hosts is not None and config.hostfile is not None:
        raise ConfigError("hosts and hostfile are both given; expected one of them")
    for name in ("interface", "launcher"):
        value = getattr(config, name)
        if value is not None and not (config.hosts or config.hostfile):
            raise ConfigError(
                f"{name} is {value!r}, but neither hosts nor hostfile is given; it would be "
                "ignored: leave it out"
            )
    if not (config.hosts or config.hostfile):
        return
    if config.strategy.supports.shares_memory:
        raise ConfigError(
            f"{config.strategy.name} shares the memory of one host; leave hosts and hostfile out"
        )
    places = config.places
    if places and config.processes > places.size:
        raise ConfigError(
            f"{config.workers} workers are {config.processes} processes, but the hosts take "
            f"{places.size}; expected more processes per host, or fewer workers"
        )


def _check_privacy(config: RunConfig, privacy: Privacy) -> None:
    """Refuse a private run that could not keep its promise."""
    name = config.strategy.name
    if not config.strategy.supports.private:
        varies = isinstance(getattr(type(config.strategy), "supports", None), property)
        asked = " as it is asked for here" if varies else ""
        raise ConfigError(f"{name} cannot be private{asked}; use another strategy")
    split = config.strategy.supports.beside == "stage"
    if split and privacy.distrust:
        raise ConfigError(
            f"distrust is given with {name}, whose stages trust one another: what passes "
            "between them has no noise; leave it out"
        )
    if split and privacy.clipping == "per-layer":
        raise ConfigError(
            f"clipping is 'per-layer' with {name}, whose stages clip by the length over all of "
            "them; use flat or automatic, or another strategy"
        )
    kind, allowed = config.partition_kind, config.partitions
    if kind not in allowed:
        raise ConfigError(
            f"partition is {kind!r}, but a private {name} run needs {' or '.join(allowed)}: "
            "which worker has a record must not depend on the other records or on its label"
        )
    if config.shares is not None:
        raise ConfigError(
            "shares are given, but a private run samples all records at one rate; leave it out"
        )
    if config.balance != "none":
        raise ConfigError(
            f"balance is {config.balance!r}, which measures and tells how many examples a "
            "worker takes; in a private run that is secret: leave it out"
        )
    if config.evaluations.seconds is not None:
        raise ConfigError(
            f"evaluate_every is {config.evaluate_every!r} in a private run: after how many steps "
            "so much time has passed tells how many records they had; use steps or epochs"
        )
    for f in fields(config):
        reason = f.metadata["tags"].not_private if "tags" in f.metadata else ""
        value = getattr(config, f.name)
        if reason and value != f.default:
            raise ConfigError(f"{f.name} is {value!r}, but {reason}; leave it out")
    raw = config.strategy.exposure == "masters" and not privacy.distrust
    if raw and config.checkpoint_every is not None:
        raise ConfigError(
            f"checkpoint_every is {config.checkpoint_every!r}, but what masters of a private "
            "run hold before they add the noise must not be written; add distrust, or leave it "
            "out"
        )
    if config.kernels == "compile" or "+" in config.kernels:
        raise ConfigError(
            f"kernels is {config.kernels!r}, which a private run cannot use; use auto, or name "
            "others"
        )
