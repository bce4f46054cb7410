"""Builds one worker from a job: group, data, model, kernels, optimizer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors.torch import save_file

from manyhands._version import __version__
from manyhands.config.options import flatten
from manyhands.config.parse import parse_slow
from manyhands.config.run import RunConfig
from manyhands.data import Plan, SampledPlan, Stored, StreamPlan, batch_tree
from manyhands.launch import atomic_files
from manyhands.launch.environment import threads_in_group
from manyhands.launch.fault_injection import fault_hook
from manyhands.launch.host import hostname
from manyhands.launch.status_board import BOARD_FILE, EVENTS_FILE, Board
from manyhands.model import lr_schedule, randomness
from manyhands.model.kernels import tuning
from manyhands.model.kernels.autograd import warm_up
from manyhands.model.kernels.malloc import keep_freed
from manyhands.model.replica import Replica
from manyhands.strategies.strategy import consensus_of, strategy_of
from manyhands.training import own_allreduce_option
from manyhands.training.process import devices, objective, split_check
from manyhands.training.process.caller_callbacks import CallerCallbacks
from manyhands.training.process.data import open_data, plan_for_worker
from manyhands.training.process.model import (
    build_optimizer,
    build_replica,
    choose_kernels,
    decay_filter,
)
from manyhands.training.process.privacy import make_private, open_ledger, split_mechanism
from manyhands.training.process.same_model_check import check_same_model
from manyhands.training.resume import began_with, check_match, data_fingerprint
from manyhands.worker import step_losses_and_times
from manyhands.worker.abilities import SplitsModel
from manyhands.worker.augment import Augment
from manyhands.worker.balancing import Balance
from manyhands.worker.checkpoint.folder_layout import BEST, FOLDER, Checkpoint, check, put_back_best
from manyhands.worker.checkpoint.save_or_stop import Lifecycle, Mark
from manyhands.worker.checkpoint.saved_contents import restore
from manyhands.worker.computation import Computation
from manyhands.worker.evaluation import Evaluation
from manyhands.worker.evaluation_schedule import Schedule
from manyhands.worker.past_epochs_file import EpochFile
from manyhands.worker.worker import Worker

if TYPE_CHECKING:
    from mpi4py import MPI

    from manyhands.comm import Communicator
    from manyhands.data.batch_tree import Tree
    from manyhands.training.job import Job


_AUGMENT = "augment, if it draws random numbers or mixes examples"


def build_worker(
    job: Job, comm: MPI.Comm | Communicator, folder: Path
) -> tuple[Worker, tuning.Kernels]:
    """Build this process's worker, in steps that all processes of the group do together.

    A master is built like a worker; it holds the plan of worker 0, for the record only.
    """
    keep_freed()
    draft = WorkerBuilder(job, comm, folder)
    draft.open_data()
    draft.build_model()
    draft.make_private()
    draft.choose_kernels()
    draft.split_model()
    draft.build_optimizer()
    made = draft.assemble()
    draft.attach(made)
    return made, draft.kernels


class WorkerBuilder:
    """Builds a worker in steps; each step uses the results of the steps before it."""

    kernels: tuning.Kernels

    def __init__(self, job: Job, comm: MPI.Comm | Communicator, folder: Path) -> None:
        """Join the group, and settle where and with how many threads this process computes."""
        self.autograd_warmup = warm_up()
        self.job, self.config, self.folder = job, job.config, folder
        self.rank, self.strategy = comm.rank, job.config.strategy
        self.board = Board(folder / BOARD_FILE, comm.size)
        self.device, self.group = devices.place_worker(self.config, _make_group(comm, self.config))
        own_allreduce_option.register(self.group, self.strategy, job.allreduce)
        beside = self.strategy.supports.beside == "master"
        self.serves = comm.rank >= self.config.workers and beside
        self.board.on_note = fault_hook(comm.rank)
        self.board.enter(comm.rank)
        threads = job.threads or self.config.threads or threads_in_group(self.group.gather)
        torch.set_num_threads(1 if self.serves else threads)

    def open_data(self) -> None:
        """Open the data, and plan which examples this worker uses."""
        self.board.note(self.rank, 0, "load")
        self.checkpoint = check(Path(self.job.checkpoint)) if self.job.checkpoint else None
        self.data = open_data(self.config, Path(self.job.data), self.job.examples)
        devices.move_data(self.data, self.device)
        if self.config.privacy:
            self.config.privacy.check_data(self.data.about.learned)
        self.follows = self.strategy.follows(self.rank, self.config.workers)
        self.plan = plan_for_worker(self.config, self.data, self.follows)

    def build_model(self) -> None:
        """Build the model and its metrics, and refuse what cannot be trained this way."""
        self.replica = build_replica(self.job, self.data, self.device)
        check_same_model(self.replica.module, self.group)
        self.strategy.check_model(layers=[layer.name for layer in self.replica.layers])
        self.strategy.check_data(self.data.about.features, self.data.about.targets)
        self.decays = decay_filter(self.config.no_decay, self.replica)
        self.board.note(self.rank, 0, "tune")
        self.batch = self.data.train.batch(_trial_indices(self.config, self.plan))
        # Two first backward passes at once would both recreate a forked engine.
        self.autograd_warmup.join()
        self.metrics = objective.make_metrics(self.job, self.replica, self.data, self.batch)
        self.split_warning = ""
        if self.rank == 0:
            self.split_warning = _split_warning(self.config, self.replica, self.batch)

    def make_private(self) -> None:
        """Make the run private, if requested."""
        self.sampler, self.mechanism = None, None
        if isinstance(self.plan, Plan) and self.config.privacy:
            self.sampler, self.mechanism = make_private(
                self.config,
                self.plan,
                self.replica,
                self.batch,
                self.group,
                self.job.provenance.before if self.job.provenance else (),
            )

    def choose_kernels(self) -> None:
        """Pass a batch through the model: find its randomness and the fastest kernels."""
        most = self.strategy.at_once(batch_tree.count_examples(self.batch[0]))
        passed = batch_tree.take_examples(*self.batch, slice(most))
        prepare = partial(randomness.prepare, self.config, self.replica, passed)
        self.others = [] if self.serves else prepare()
        step = self.mechanism.try_out if self.mechanism else self.replica.gradient
        self.kernels = choose_kernels(
            self.config, self.replica, passed, self.group, partial(step, *passed)
        )

    def split_model(self) -> None:
        """Keep this process's part of the model, where the strategy splits it."""
        whole = replica = self.replica
        if isinstance(self.strategy, SplitsModel):
            replica = self.strategy.part(whole, self.batch, self.group, self.config.workers)
        self.replica = replica
        if self.mechanism and replica is not whole:
            split_mechanism(self.mechanism, replica, self.group, self.config)
        if replica.activations is None and not (self.serves or self.config.privacy):
            compute = partial(batch_tree.call_model, replica.module)
            if replica.of_model:
                compute = partial(replica.objective, replica.module, y=self.batch[1])
            # What came out is let go at once: its graph would bind the parameters to this stream.
            replica.activations = replica.kept(compute, self.batch[0])[0]

    def build_optimizer(self) -> None:
        """Build the optimizer; on a GPU capture the steps."""
        self.optimizer = build_optimizer(self.config, self.replica, self.batch, self.decays)
        self.graphs = None
        cuda = self.device.type == "cuda"
        if cuda and not self.mechanism and _is_capturable(self.job, self.replica, self.data):
            self.graphs, self.kernels = devices.capture_graphs(
                self.config, self.replica, self.optimizer, self.data, self.plan, self.kernels
            )
        elif self.kernels.choice == "graphs":
            self.kernels = devices.kernels_without_graphs(self.config)

    def assemble(self) -> Worker:
        """Put the worker together."""
        evaluation = Evaluation(
            metrics=self.metrics,
            aim=objective.make_aim(self.config, self.metrics),
            consensus=consensus_of,
            schedule=Schedule(self.config.evaluations),
        )
        apart = not self.strategy.supports.together
        return Worker(
            config=self.config,
            replica=self.replica,
            optimizer=self.optimizer,
            comm=self.group,
            plan=self.sampler or self.plan,
            data=self.data,
            board=self.board,
            evaluation=evaluation,
            computation=Computation(
                mechanism=self.mechanism,
                graphs=self.graphs,
                augment=_build_augment(self.job, self.follows),
            ),
            # Where workers do not step together, they wait while worker 0 evaluates.
            hooks=[evaluation] if apart or evaluation.acts_within_epochs else [],
        )

    def attach(self, made: Worker) -> None:
        """Attach the worker's hooks, and restore its checkpoint, if any."""
        job, config, checkpoint = self.job, self.config, self.checkpoint
        # When a private step ended tells how many examples it had: on no disk under a name.
        resumable = (config.checkpoint_every or checkpoint) and not config.privacy
        step_losses_and_times.keep(made, Path(job.output) / FOLDER if resumable else None)
        if config.checkpoint_every or checkpoint:
            made.training.epoch_file = EpochFile(Path(job.output) / FOLDER)
        hosts = self.group.gather(hostname())
        if self.rank == 0:
            make_leader(job, made, self.folder)
            made.reporter.warn(self.strategy.warning(hosts))
            made.reporter.warn(self.split_warning)
            if self.group.size > 1:
                augments = [_AUGMENT] if job.augment and config.workers > 1 else []
                others = [*augments, *self.others]
                made.reporter.warn(randomness.warning(config, made.replica, others))
        # What a model draws of its own must differ between workers; initial weights must not.
        if not config.privacy:
            seed = np.random.SeedSequence([config.seed, self.rank]).generate_state(1)[0]
            torch.manual_seed(int(seed))
        began = self._attach_rate(made)
        _attach_slowdown_and_balance(made)
        strategy_of(config).prepare(made)
        _attach_lifecycle(job, made, self.kernels, began)
        if checkpoint:
            _restore(job, made, checkpoint)
        if self.mechanism:
            open_ledger(made, Path(job.output), _ledger_state(made, checkpoint), job.provenance)

    def _attach_rate(self, made: Worker) -> int:
        """Attach the learning-rate schedule; return the number of workers at the run's start."""
        config = self.config
        epochs = sum(made.plan.steps(e) for e in range(1, config.epochs + 1))
        steps = min(epochs, config.max_steps or epochs)
        self.board.steps(self.rank, 0 if self.serves else steps)
        began = began_with(self.checkpoint) if self.checkpoint else config.workers
        made.computation.rate = _build_rate(self.job, made.optimizer, steps, began)
        if made.computation.rate:
            made.computation.planned = self.group.gather(steps)[: config.workers]
        return began


def _trial_indices(config: RunConfig, plan: Plan | StreamPlan | SampledPlan) -> np.ndarray:
    """Return the indices of a batch for trials; a private sample stays secret."""
    if config.privacy:
        split = 1 if config.strategy.supports.whole_batches else config.workers
        return np.arange(min(plan.examples, max(1, config.batch_size // split)))
    share = next(plan.epoch(1), None)
    return share.indices if share and len(share.indices) else np.zeros(1, dtype=np.int64)


def _split_warning(config: RunConfig, replica: Replica, batch: tuple[Tree, Tree]) -> str:
    """Return a warning where the loss changes when a batch is split."""
    parts = split_check.count_pieces(config)
    halves = None if parts == 1 or config.privacy else split_check.compare_halves(replica, batch)
    return split_check.warning(objective.loss_name(replica.loss), halves, parts) if halves else ""


def _build_augment(job: Job, worker: int) -> Augment | None:
    """Return the augmentation of this worker's batches, if any."""
    if job.augment is None:
        return None
    return Augment(job.augment, seed=job.config.seed, worker=worker)


def _build_rate(
    job: Job, optimizer: torch.optim.Optimizer, steps: int, workers: int
) -> lr_schedule.Rate | None:
    """Return the learning-rate schedule of a run that began with so many workers, if any."""
    config = job.config
    scale = lr_schedule.lr_scale(config.lr_scaling, workers)
    if job.schedule:
        table = lr_schedule.tabulate(job.schedule, optimizer, max(1, steps))
        return lr_schedule.Rate("own", 0.0, scale, max(1, steps), table)
    wanted = lr_schedule.Rate(config.schedule, config.warmup, scale, max(1, steps))
    return wanted if (wanted.kind, wanted.warmup, scale) != ("constant", 0.0, 1.0) else None


def _is_capturable(job: Job, replica: Replica, data: Stored) -> bool:
    """Return whether a CUDA graph can capture the step: one pass over one tensor."""
    if data.about.lazy:
        return False
    several = data.about.features is not None or data.about.targets is not None
    passes = replica.of_model or replica.pieces > 1 or job.augment is not None or replica.norms
    return data.about.labelled and not (several or passes)


def make_leader(job: Job, worker: Worker, folder: Path) -> None:
    """Let a worker announce events and keep the best model, as the group's first does."""
    worker.reporter.announce = worker.reporter.announce or _Announcer(folder / EVENTS_FILE)
    if not worker.reporter.callbacks:
        remote = [CallerCallbacks(worker, folder, job.caller_events)] if job.caller_events else []
        worker.reporter.callbacks = [*job.callbacks, *remote]
    worker.reporter.keep_best = partial(_save_best, Path(job.output))


def _save_best(output: Path, replica: Replica, params: torch.Tensor) -> None:
    """Write the model with these parameters as the best so far, atomically."""
    with replica.holding(params):
        state = {k: v.detach().clone() for k, v in replica.judged.state_dict().items()}
    with atomic_files.replacing(output / BEST) as temporary:
        save_file(state, temporary)


def _attach_slowdown_and_balance(worker: Worker) -> None:
    """Slow the worker down, or balance batches by speed, if requested."""
    config, rank = worker.config, worker.rank
    slow = parse_slow(config.slow) if config.slow else None
    worker.computation.slow = slow if slow and slow.rank == rank else None
    if config.balance == "speed":
        balance = Balance(rank=rank, size=config.workers, batch_size=config.batch_size)
        worker.hooks.append(balance)
        worker.computation.parts = balance.at
        worker.facts["shares"] = balance.history


def _attach_lifecycle(job: Job, worker: Worker, kernels: tuning.Kernels, began: int) -> None:
    """Attach the hook that writes checkpoints and handles requests to stop."""
    strategy = worker.config.strategy
    cut = strategy.settled(worker.replica) if isinstance(strategy, SplitsModel) else {}
    about = {
        "manyhands": __version__,
        # What divides the data by default depends on the data, too: it is found again.
        "options": {**flatten(worker.config), "partition": worker.config.partition},
        **({"own_strategy": dict(job.own_strategy)} if job.own_strategy else {}),
        "began_with": began,
        "data": data_fingerprint(worker),
        "settled": {"kernels": kernels.choice, **cut},
        "loss": _user_loss_name(job.loss),
        "layers": [[layer.name, layer.start, layer.stop] for layer in worker.replica.layers],
    }
    worker.hooks.append(Lifecycle(worker, Path(job.output), about, grows=job.grows))


def _restore(job: Job, worker: Worker, checkpoint: Checkpoint) -> None:
    """Restore the worker's checkpoint."""
    check_match(checkpoint, worker, _user_loss_name(job.loss))
    restore(worker, checkpoint)
    cast("Lifecycle", worker.hook(Lifecycle)).mark = Mark(checkpoint.step)
    if worker.rank == 0:
        put_back_best(checkpoint, Path(job.output))


def _ledger_state(worker: Worker, checkpoint: Checkpoint | None) -> Any:
    """Return this worker's privacy spending at the checkpoint."""
    if checkpoint is None or worker.rank >= checkpoint.about["processes"]:
        return None
    return checkpoint.part(worker.rank).numbers.get("privacy")


def _user_loss_name(loss: Any) -> str | None:
    """Return the name of a loss that the user wrote; None for bundled losses."""
    return None if loss is None else str(getattr(loss, "__name__", type(loss).__name__))


def _make_group(comm: MPI.Comm | Communicator, config: RunConfig) -> Communicator:
    """Return the processes of `comm` as a group over the chosen backend; NCCL comes later."""
    if hasattr(comm, "meter"):
        group = cast("Communicator", comm)
    elif config.on_failure == "continue":
        from manyhands.comm.ulfm import fault_tolerant_group
        from manyhands.training.process import recovery

        recovery.check_mpi()
        return fault_tolerant_group(comm)
    else:
        from manyhands.comm.mpi import MPICommunicator

        group = MPICommunicator(comm)
    if config.comm in ("auto", "mpi", "torch:nccl", group.name):
        return group
    from manyhands.comm.torch import make_torch_group

    return make_torch_group(config.comm.removeprefix("torch:"))


class _Announcer:
    """Appends events to a file that the launcher reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, event: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(event) + "\n")
