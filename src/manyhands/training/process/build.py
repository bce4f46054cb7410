"""Builds one worker from a job: group, data, model, kernels, optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from manyhands import files
from manyhands._version import __version__
from manyhands.config.optimizers import SGD, Adam, AdamW, expect_no_closure
from manyhands.config.parse import parse_slow
from manyhands.config.run import RunConfig
from manyhands.data import Plan, Stored, StreamPlan, batch_tree
from manyhands.errors import ConfigError, nearest
from manyhands.launch.environment import own_threads
from manyhands.launch.fault_injection import striker
from manyhands.launch.status_board import BOARD_FILE, EVENTS_FILE, Board
from manyhands.model import lr_schedule, randomness
from manyhands.model.kernels import tuning
from manyhands.model.kernels.autograd import wake
from manyhands.model.kernels.malloc import keep_freed
from manyhands.model.replica import Replica
from manyhands.model.zoo import MODELS, OWN_LOSS
from manyhands.options import flatten
from manyhands.training.process import devices, objective, split_check
from manyhands.training.process.agreement import expect_same_model
from manyhands.training.process.data import opened, planned_for
from manyhands.training.process.privacy import divide, open_ledger, protect
from manyhands.training.resume import began_with, fingerprint, verify
from manyhands.training.trial import materialise
from manyhands.worker import step_history
from manyhands.worker.augment import Augment
from manyhands.worker.balancing import Balance
from manyhands.worker.checkpoint.format import BEST, FOLDER, Checkpoint, check, put_back_best
from manyhands.worker.checkpoint.lifecycle import Lifecycle, Mark, restore
from manyhands.worker.worker import Worker

if TYPE_CHECKING:
    from mpi4py import MPI

    from manyhands.comm import Communicator
    from manyhands.data.batch_tree import Tree
    from manyhands.training.job import Job


def worker(job: Job, comm: MPI.Comm | Communicator, folder: Path) -> tuple[Worker, tuning.Kernels]:
    """Build this process's worker: group, data, model from one seed, kernels, optimizer.

    A master is built like a worker; it holds the plan of worker 0, for the record only.
    """
    keep_freed()
    waking = wake()
    config = job.config
    board = Board(folder / BOARD_FILE, comm.size)
    group = _group(comm, config)
    device, group = devices.place(config, group)
    strategy = config.strategy
    serves = comm.rank >= config.workers and strategy.supports.beside == "master"
    board.on_note = striker(comm.rank)
    board.enter(comm.rank)
    threads = job.threads or config.threads or own_threads(group.gather)
    torch.set_num_threads(1 if serves else threads)
    board.note(comm.rank, 0, "load")
    found = check(Path(job.checkpoint)) if job.checkpoint else None
    data = opened(config, Path(job.data))
    devices.settle(data, device)
    if config.privacy:
        config.privacy.check_data(data.about.learned)
    rank = strategy.follows(comm.rank, config.workers)
    plan = planned_for(config, data, rank)
    replica = _replica(job, data, device)
    expect_same_model(replica.module, group)
    strategy.check_model(layers=[layer.name for layer in replica.layers])
    strategy.check_data(data.about.features, data.about.targets)
    decays = _decaying(config.no_decay, replica)
    board.note(comm.rank, 0, "tune")
    batch = data.train.batch(_indices(config, plan))
    waking.join()  # here: two first backward passes at once would both make a forked engine anew
    metrics = objective.metrics(job, replica, data, batch)
    unlike = _unlike_halves(config, replica, batch) if comm.rank == 0 else ""
    sampler, mechanism = None, None
    if isinstance(plan, Plan) and config.privacy:
        sampler, mechanism = protect(config, plan, replica, batch, group)
    passed = batch_tree.cut(*batch, slice(strategy.at_once(batch_tree.count(batch[0]))))
    others = [] if serves else randomness.prepare(config, replica, passed)
    step = partial(mechanism.try_out if mechanism else replica.gradient, *passed)
    kernels = _kernels(config, replica, passed, group, step)
    whole, replica = replica, strategy.part(replica, batch, group, config.workers)
    if mechanism and replica is not whole:
        divide(mechanism, replica, group, config)
    if replica.activations is None and not (serves or config.privacy):
        compute = partial(batch_tree.call, replica.module)
        if replica.of_model:
            compute = partial(replica.objective, replica.module, y=batch[1])
        # What came out is let go at once: its graph would bind the parameters to this stream.
        replica.activations = replica.kept(compute, batch[0])[0]
    optimizer = _optimizer(config, replica, batch, decays)
    captured = None
    if device.type == "cuda" and not mechanism and _plain(job, replica, data):
        captured, kernels = devices.graphs(config, replica, optimizer, data, plan, kernels)
    elif kernels.choice == "graphs":
        kernels = devices.without_graphs(config)
    made = Worker(
        config=config,
        replica=replica,
        optimizer=optimizer,
        graphs=captured,
        comm=group,
        plan=sampler or plan,
        mechanism=mechanism,
        metrics=metrics,
        augment=_augment(job, rank),
        aim=objective.aim(config, metrics),
        data=data,
        board=board,
    )
    # When a private run's steps ended tells how many examples they had: on no disk under a name.
    resumable = (config.checkpoint_every or found) and not config.privacy
    step_history.keep(made, Path(job.output) / FOLDER if resumable else None)
    if comm.rank == 0:
        lead(job, made, folder)
        randomness.announce(made, unlike)
        randomness.warn(made, others)
    # What a model draws of its own must differ between workers; initial weights must not.
    if not config.privacy:
        seed = np.random.SeedSequence([config.seed, comm.rank]).generate_state(1)[0]
        torch.manual_seed(int(seed))
    epochs = sum(made.plan.steps(e) for e in range(1, config.epochs + 1))
    steps = min(epochs, config.max_steps or epochs)
    board.steps(comm.rank, 0 if serves else steps)
    began = began_with(found) if found else config.workers
    made.rate = _rate(job, made.optimizer, steps, began)
    if made.rate:
        made.planned = group.gather(steps)[: config.workers]
    _attach_speeds(made)
    config.strategy.prepare(made)
    _attach_lifecycle(job, made, kernels, began)
    if found:
        _go_on(job, made, found)
    if mechanism:
        open_ledger(made, Path(job.output), _remembered(made, found))
    return made, kernels


def lead(job: Job, worker: Worker, folder: Path) -> None:
    """Let a worker announce what happens, and keep the best model: the first of the group does."""
    worker.announce = worker.announce or _Announcer(folder / EVENTS_FILE)
    worker.callbacks = worker.callbacks or list(job.callbacks)
    worker.keep_best = partial(_save_best, Path(job.output))


def _unlike_halves(config: RunConfig, replica: Replica, batch: tuple[Tree, Tree]) -> str:
    """Return a warning where the loss changes because the run computes it on parts of a batch."""
    parts = split_check.pieces(config)
    found = None if parts == 1 or config.privacy else split_check.compare(replica, batch)
    return split_check.warning(objective.called(replica.loss), found, parts) if found else ""


def _save_best(output: Path, replica: Replica, params: torch.Tensor) -> None:
    """Write the model with these parameters down as the best so far, all or nothing."""
    with replica.holding(params):
        state = {k: v.detach().clone() for k, v in replica.judged.state_dict().items()}
    with files.replacing(output / BEST) as temporary:
        save_file(state, temporary)


def _augment(job: Job, worker: int) -> Augment | None:
    """Return what changes this worker's batches, if anything does."""
    if job.augment is None:
        return None
    return Augment(job.augment, seed=job.config.seed, worker=worker)


def _rate(
    job: Job, optimizer: torch.optim.Optimizer, steps: int, workers: int
) -> lr_schedule.Rate | None:
    """Return how the learning rate changes over a run that began with so many workers, if so."""
    config = job.config
    scale = lr_schedule.scale(config.lr_scaling, workers)
    if job.schedule:
        table = lr_schedule.tabulated(job.schedule, optimizer, max(1, steps))
        return lr_schedule.Rate("own", 0.0, scale, max(1, steps), table)
    wanted = lr_schedule.Rate(config.schedule, config.warmup, scale, max(1, steps))
    return wanted if (wanted.kind, wanted.warmup, scale) != ("constant", 0.0, 1.0) else None


def _attach_speeds(worker: Worker) -> None:
    """Slow the worker down, or let its part of the batch follow its speed, where asked for."""
    config, rank = worker.config, worker.rank
    slow = parse_slow(config.slow) if config.slow else None
    worker.slow = slow if slow and slow.rank == rank else None
    if config.balance == "speed":
        worker.balance = Balance(rank=rank, size=config.workers, batch_size=config.batch_size)
        worker.facts["shares"] = worker.balance.history


def _indices(config: RunConfig, plan: Plan | StreamPlan) -> np.ndarray:
    """Return examples to try things out on: as many as a batch has. A private sample is secret."""
    if config.privacy:
        split = 1 if config.strategy.supports.whole_batches else config.workers
        return np.arange(min(plan.examples, max(1, config.batch_size // split)))
    share = next(plan.epoch(1), None)
    return share.indices if share and len(share.indices) else np.zeros(1, dtype=np.int64)


def _attach_lifecycle(job: Job, worker: Worker, kernels: tuning.Kernels, began: int) -> None:
    """Let the worker write checkpoints and hear requests."""
    about = {
        "manyhands": __version__,
        "options": flatten(worker.config),
        "began_with": began,
        "data": fingerprint(worker),
        "settled": {
            "kernels": kernels.choice,
            **worker.config.strategy.settled(worker.replica),
        },
        "loss": _own_name(job.loss),
        "layers": [[layer.name, layer.start, layer.stop] for layer in worker.replica.layers],
    }
    worker.lifecycle = Lifecycle(worker, Path(job.output), about, grows=job.grows)


def _go_on(job: Job, worker: Worker, found: Checkpoint) -> None:
    """Put the worker where its checkpoint was."""
    verify(found, worker, _own_name(job.loss))
    restore(worker, found)
    cast("Lifecycle", worker.lifecycle).mark = Mark(found.step)
    if worker.rank == 0:
        put_back_best(found, Path(job.output))


def _remembered(worker: Worker, found: Checkpoint | None) -> Any:
    """Return what this worker had spent of its privacy when the checkpoint was written."""
    if found is None or worker.rank >= found.about["processes"]:
        return None
    return found.part(worker.rank).numbers.get("privacy")


def _own_name(loss: Any) -> str | None:
    """Return the name of a loss that the user wrote; None for those that come with manyhands."""
    return None if loss is None else str(getattr(loss, "__name__", type(loss).__name__))


def _group(comm: MPI.Comm | Communicator, config: RunConfig) -> Communicator:
    """Return the processes of `comm` as a group over what is asked for; NCCL comes later."""
    if hasattr(comm, "meter"):
        group = cast("Communicator", comm)
    elif config.on_failure == "continue":
        from manyhands.comm.ulfm import lasting
        from manyhands.training.process import recovery

        recovery.check()
        return lasting(comm)
    else:
        from manyhands.comm.mpi import MPICommunicator

        group = MPICommunicator(comm)
    if config.comm in ("auto", "mpi", "torch:nccl", group.name):
        return group
    from manyhands.comm.torch import meet

    return meet(config.comm.removeprefix("torch:"))


class _Announcer:
    """Appends what happened to a file that the launcher follows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, event: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(event) + "\n")


def _replica(job: Job, data: Stored, device: torch.device) -> Replica:
    config = job.config
    torch.manual_seed(config.seed)
    module, own_loss = _module(job.model, data)
    loss = objective.loss(job, own_loss, data)
    # Drawn on the CPU, so that the first weights are the same on every device.
    materialise(module, loss, data)
    if config.init:
        _load(module, Path(config.init))
    module.to(device, getattr(torch, config.dtype)).train()
    replica = Replica(module, loss, classifies=False)
    replica.pieces, replica.autocast = config.accumulate, config.autocast
    return replica


def _plain(job: Job, replica: Replica, data: Stored) -> bool:
    """Say whether a step is one pass over one tensor as stored, which a graph can capture."""
    several = data.about.features is not None or data.about.targets is not None
    passes = replica.of_model or replica.pieces > 1 or job.augment is not None or replica.norms
    return data.about.labelled and not (several or passes)


def _load(module: nn.Module, path: Path) -> None:
    """Give `module` the weights of a file."""
    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigError(f"init is {str(path)!r}, which does not fit: {error}") from None


def _module(model: Any, data: Stored) -> tuple[nn.Module, str | None]:
    """Return the module that a name, a factory or a module stands for, and its own loss if any."""
    if isinstance(model, str):
        if model not in MODELS:
            raise ConfigError(
                f"model is {model!r}; expected {', '.join(MODELS)} or package.module:factory."
                f"{nearest(model, MODELS)}"
            )
        return MODELS[model](tuple(data.shape), data.outputs), _own_loss(model, data)
    module = model if isinstance(model, nn.Module) else model()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model gave a {type(module).__name__}; expected a torch.nn.Module")
    return module, None


def _own_loss(model: str, data: Stored) -> str | None:
    """Return the loss of a model that comes with manyhands, which are made for classes."""
    return OWN_LOSS[model] if data.classes else None


def _kernels(
    config: RunConfig,
    replica: Replica,
    passed: tuple[Tree, Tree],
    group: Communicator,
    step: Callable[[], object],
) -> tuning.Kernels:
    """Apply the kernels asked for, or the fastest for what is `passed` at once."""
    if config.kernels != "auto":
        if config.kernels.startswith("compile"):
            parts: list[Any] = [part for part in (replica.masks, replica.norms) if part]
            for part in parts:
                part.outside_compilation()
        return tuning.given(replica, config.kernels)
    if replica.params.is_cuda:  # how long a step takes kernel by kernel tells nothing of its graph
        return tuning.given(replica, "default" if config.privacy else "graphs")
    return tuning.choose(
        replica,
        passed,
        group.maximum,
        lambda mine: group.gather(mine)[0],
        step=step,
        kind="private" if config.privacy else "bfloat16" if config.autocast else "plain",
        takes_part=group.rank < config.workers,
    )


def _decaying(patterns: str | None, replica: Replica) -> Callable[[str], bool]:
    """Return what says of a parameter's name whether weight decay is for it."""
    given = patterns.split(",") if patterns else []
    names = [name for name, _ in replica.named]
    for pattern in given:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"no_decay has {pattern!r}, which is no parameter's name; expected some of "
                f"{', '.join(names)}"
            )
    return lambda name: not any(fnmatchcase(name, pattern) for pattern in given)


def _optimizer(
    config: RunConfig,
    replica: Replica,
    batch: tuple[Tree, Tree],
    decays: Callable[[str], bool] = lambda name: True,
) -> torch.optim.Optimizer:
    """Build the optimizer over the flat vector, or over the named parameters if it is not ours."""
    chosen = config.optimizer
    if not isinstance(chosen, SGD | Adam | AdamW):
        built = chosen([p for _, p in replica.named] or [nn.Parameter(replica.params[:0])])
        if not isinstance(built, torch.optim.Optimizer):
            kind = type(built).__name__
            raise ConfigError(f"optimizer gave a {kind}; expected a torch.optim.Optimizer")
        expect_no_closure(built)
        return built
    if not chosen.weight_decay:
        return chosen.build(replica.slices(0, len(replica.params)), cuda=replica.params.is_cuda)
    used, unused = replica.segments(*batch, decays)
    untouched = [{"params": unused, "weight_decay": 0.0}] if unused else []
    return chosen.build([{"params": used}, *untouched], cuda=replica.params.is_cuda)
