"""State and operations of one worker, independent of the strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch

from manyhands.config.strategy_class_rules import suggest_check
from manyhands.data import Plan
from manyhands.data.lazy_batches import Ahead, LazySplit
from manyhands.data.prefetch import Prefetcher
from manyhands.errors import DivergedError
from manyhands.model.layers import view_parameters
from manyhands.worker.clock import Clock, Epoch
from manyhands.worker.computation import Computation
from manyhands.worker.facts import Facts
from manyhands.worker.reporter import Reporter
from manyhands.worker.slowdown import slowed
from manyhands.worker.training_state import TrainingState

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from manyhands.allreduce.shared_memory import Through
    from manyhands.comm import Communicator
    from manyhands.comm.mpi import MPICommunicator
    from manyhands.config.run import RunConfig
    from manyhands.data import SampledPlan, Share, Stored, StreamPlan
    from manyhands.data.batch_tree import Tree
    from manyhands.launch.status_board import Board
    from manyhands.model.metrics import Metric
    from manyhands.model.replica import Loss, Replica
    from manyhands.privacy.sampling import PoissonPlan
    from manyhands.worker.stopping import Aim

H = TypeVar("H")


class Batch(NamedTuple):
    """One worker's part of one update.

    `weight` is its share of the update's `total` examples, `examples` how many stand behind it; in
    a private run all three are the expected ones, and how many `x` holds is secret. Features and
    targets may be several tensors each (`manyhands.data.batch_tree`).
    """

    x: Tree
    y: Tree
    weight: float
    total: int
    examples: float

    def alone(self) -> Self:
        """Return the same share with weight 1: its gradient is that of its own mean loss."""
        return self._replace(weight=1.0)


class StepHook(Protocol):
    """What accompanies a worker's steps: a load balancer, checkpoints."""

    def after_step(self, worker: Worker, examples: int) -> None:
        """Do what follows a step of so many examples."""


class EvaluationGate(Protocol):
    """Stops the other workers while worker 0 evaluates, where workers do not step together."""

    def closed(self) -> AbstractContextManager[None]:
        """Let the others wait while worker 0 evaluates; then let them continue, or stop."""

    def wait(self) -> None:
        """Wait while worker 0 evaluates; called by every worker between two steps."""


class Evaluator(Protocol):
    """Evaluates the model after each epoch."""

    metrics: tuple[Metric, ...]
    aim: Aim
    gate: EvaluationGate | None

    def after_epoch(self, worker: Worker, epoch: Epoch) -> None:
        """Evaluate the model, or keep a copy for later. Collective where workers step together."""


@dataclass(kw_only=True)
class Worker:
    """One worker: what a strategy needs, and nothing that names one.

    A strategy loops over `batches()`; evaluation and stopping happen there, between two batches.

    Attributes:
        facts: What the record says of the strategy.
        state: What the strategy keeps from step to step, if anything.
        number: Its rank when the run began, by which board, log and record know it.
    """

    config: RunConfig
    replica: Replica
    optimizer: torch.optim.Optimizer
    comm: Communicator
    plan: Plan | PoissonPlan | StreamPlan | SampledPlan
    data: Stored
    board: Board
    evaluation: Evaluator
    computation: Computation = field(default_factory=Computation)
    training: TrainingState = field(default_factory=TrainingState)
    clock: Clock = field(default_factory=Clock)
    reporter: Reporter = field(default_factory=Reporter)
    hooks: list[StepHook] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=Facts)
    state: Any = None
    number: int = -1

    def __post_init__(self) -> None:
        self.number = self.comm.rank if self.number < 0 else self.number

    @property
    def rank(self) -> int:
        """This worker's place in the group, from 0; it changes where others die."""
        return self.comm.rank

    @property
    def role(self) -> str:
        """What this process is: "worker", or what the strategy puts beside its workers."""
        beside = self.config.strategy.supports.beside
        return "worker" if self.rank < self.config.workers else beside

    @property
    def step(self) -> int:
        """How many steps this worker has done."""
        return self.training.step

    @property
    def lr(self) -> float:
        """The learning rate of the last step, as the schedule has it."""
        group = self.optimizer.param_groups[0]
        rate = self.computation.rate
        factor = rate.at(max(0, self.training.step - 1)) if rate else 1.0
        return factor * float(group.get("initial_lr", group["lr"]))

    @property
    def params(self) -> Tensor:
        """The parameters, live; shape (dim,)."""
        return self.replica.params

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return each parameter's part of a vector such as `params`, by name, in its shape."""
        return view_parameters(vector, self.replica.named)

    def hook(self, kind: type[H]) -> H | None:
        """Return the hook of that type, if there is one."""
        return next((hook for hook in self.hooks if isinstance(hook, kind)), None)

    def batches(self) -> Iterator[Batch]:
        """Yield this worker's part of every update, until the run's last.

        Collective where workers step together: after each epoch all of them evaluate. Elsewhere
        worker 0 keeps a copy of the parameters, to be judged after training.
        """
        together, training, clock = (
            self.config.strategy.supports.together,
            self.training,
            self.clock,
        )
        if together:
            self.reporter.agree_on_events(self.comm)
            self.comm.barrier()
        clock.started = time.monotonic()
        epochs = training.epochs
        for number in range(epochs[-1].epoch if epochs else 1, self.config.epochs + 1):
            if not epochs or epochs[-1].epoch < number:
                epochs.append(Epoch(number))
            epoch = epochs[-1]
            self._stop_at_last_step()  # a resumed run may have done them all
            yield from self._epoch(epoch)
            self.settle()
            epoch.seconds = clock.seconds()
            self.evaluation.after_epoch(self, epoch)
            if training.stopped != "epochs":
                break
        if not together:
            clock.ended = time.monotonic()
            self.board.note(self.number, training.step, "done")  # to wait for others is not to hang

    def _epoch(self, epoch: Epoch) -> Iterator[Batch]:
        """Yield the batches of one epoch that are left."""
        training, augment, masks = self.training, self.computation.augment, self.replica.masks
        ahead = self._ahead(epoch.epoch, epoch.steps)
        for share in ahead:
            if training.stopped != "epochs":
                break
            self.clock.begun.append(time.monotonic())
            training.seen = epoch.seen()
            self.board.note(self.number, training.step, "gradient")
            x, y = ahead.batch()
            if augment:
                x, y = augment(x, y, training.step)
            if masks:
                masks.begin(training.step, share.indices)
            yield Batch(x, y, share.examples / share.total, share.total, share.examples)
            self.end_step(epoch)
            self.end_event("on_step")
            for hook in self.hooks:
                hook.after_step(self, len(share.indices))
            self._stop_at_last_step()

    def _ahead(self, number: int, start: int) -> Prefetcher[Any] | Ahead:
        """Return the shares of an epoch from a step on, with their examples."""
        computation, train = self.computation, self.data.train
        shares = self.plan.epoch(number, start, computation.shares(self.training.epoch_start))
        if isinstance(train, LazySplit):
            return train.ahead(cast("Iterator[Share]", shares), number)
        # Speeds and deaths change what comes next; a stream has one batch at a time.
        known = isinstance(self.plan, Plan) and not computation.parts
        known = known and self.config.on_failure != "continue" and train.device.type == "cpu"
        return Prefetcher(computation.graphs or train, shares, train.width if known else None)

    def gradient(self, batch: Batch) -> Tensor:
        """Return the gradient of the batch's mean loss, times the batch's weight; shape (dim,).

        In a private run it is the noised mean of clipped gradients, and the loss stays unknown.
        """
        slow, weight = self.computation.slow, batch.weight
        mechanism, graphs = self.computation.mechanism, self.computation.graphs
        with slowed(slow, self.replica, batch.x, batch.y) if slow else nullcontext():
            if mechanism:
                mechanism.gradient(batch.x, batch.y, batch.examples, weight)
                self.note_nothing(batch.examples)
                weight = 1.0
            elif graphs and len(batch.x):
                graphs.gradient(batch.x, batch.y, self.training.step + 1)
                if graphs.full or self.comm.size > 1:
                    self.settle()  # a sum would wait for the gradient, and count it as its own time
            else:
                early = self.computation.early
                self.note_loss(self.replica.gradient(batch.x, batch.y, weight, early))
                weight = 1.0
        if weight != 1.0:
            self.replica.grad.mul_(weight)
        self.clock.computed.append(time.monotonic())
        return self.replica.grad

    def watch_backward(self, ready: Callable[[int], None]) -> Tensor:
        """Let `gradient` call `ready` during backward; return the vector that it fills."""
        from manyhands.model.early_gradients import EarlyGradients

        early = EarlyGradients(self.replica.named, self.replica.grad, ready)
        self.computation.early = early
        return self.replica.grad

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the workers, in place."""
        self.board.note(self.number, self.training.step, "exchange")
        begin = time.monotonic()
        self.comm.allreduce(vector, algorithm)
        self.clock.exchange(begin, time.monotonic())

    def allreduce_through(self, vector: Tensor, algorithm: str, through: Through) -> None:
        """Sum `vector` over workers who share memory, and let `through` make new parameters of it.

        See `MPICommunicator.allreduce_through`; what `through` does is the update.
        """
        self.board.note(self.number, self.training.step, "exchange")
        begin = time.monotonic()
        comm = cast("MPICommunicator", self.comm)
        updating = comm.allreduce_through(vector, self.params, algorithm, through)
        self.clock.exchange(begin, time.monotonic() - updating)
        self.board.note(self.number, self.training.step, "update")

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Count what happens inside as exchange: the current step's, or else the last one's."""
        self.board.note(self.number, self.training.step, "exchange")
        begin = time.monotonic()
        yield
        self.clock.exchange(begin, time.monotonic())

    def update(self, gradient: Tensor) -> None:
        """Let the optimizer step along `gradient`, shortened where that is asked for."""
        self.board.note(self.number, self.training.step, "update")
        own = self.replica.grad
        if gradient is not own and gradient.data_ptr() != own.data_ptr():
            own.copy_(gradient)
        self.shorten(own)
        rate, graphs = self.computation.rate, self.computation.graphs
        if rate:
            rate.set(self.optimizer, self.training.step)
        (graphs.update if graphs else self.optimizer.step)()

    def shorten(self, gradient: Tensor) -> None:
        """Scale `gradient` down to the run's `clip_norm`, in place; `update` does so itself."""
        if (longest := self.config.clip_norm) is not None:
            length = torch.linalg.vector_norm(gradient)
            gradient.mul_(torch.clamp(longest / (length + 1e-6), max=1.0))

    def settle(self) -> None:
        """Wait for the GPU, where there is one, and note what its steps gave since the last time.

        Without this the host goes on while the GPU computes.
        """
        if graphs := self.computation.graphs:
            for step, loss in graphs.settle():
                self.note_loss(loss, step)

    def note_loss(self, loss: Loss, step: int | None = None) -> None:
        """Note what a step gave, by default the current one; refuses a loss that is not finite."""
        if not math.isfinite(loss.mean):
            raise DivergedError(
                f"the loss is {loss.mean} at step {step or self.step + 1} of worker {self.rank}; "
                f"try a smaller learning rate than {self.lr:.3g}, or look for bad values in the "
                f"data{suggest_check(self.config.strategy)}",
                rank=self.rank,
            )
        epoch = self.training.epochs[-1]
        epoch.loss = (epoch.loss or 0.0) + loss.mean * loss.examples
        epoch.correct = (epoch.correct or 0) + loss.correct if self.replica.classifies else None
        epoch.examples += loss.examples
        self.training.losses.append(loss.mean if loss.examples else None)

    def note_nothing(self, expected: float) -> None:
        """Note a step of so many examples, or so many expected, whose loss stays unknown here."""
        epoch = self.training.epochs[-1]
        epoch.loss = epoch.correct = None
        epoch.examples += expected
        self.training.losses.append(None)

    def end_step(self, epoch: Epoch) -> None:
        """Count a step that is over."""
        training, reporter = self.training, self.reporter
        self.clock.end_step()
        training.step += 1
        epoch.steps += 1
        if reporter.announce and reporter.silence.over():
            reporter.announce(epoch.status(training.step, self.plan.steps(epoch.epoch)))
        if reporter.callbacks:
            # On a GPU the loss is known only when somebody waits for it.
            losses = training.losses if not self.computation.graphs else None
            loss = losses[-1] if losses else None
            about = {"step": training.step, "epoch": epoch.epoch, "loss": loss, "lr": self.lr}
            reporter.call("on_step", about, self.clock)

    def limit_reached(self) -> str | None:
        """Return what allows no further step, if anything does."""
        mechanism, step, most = self.computation.mechanism, self.step, self.config.max_steps
        if most is not None and step >= most:
            return "max_steps"
        spent = mechanism and mechanism.last is not None and step >= mechanism.last
        return "budget" if spent else None

    def _stop_at_last_step(self) -> None:
        self.training.stopped = self.limit_reached() or self.training.stopped

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Keep what happens inside off the training clock and off the meter."""
        begin = time.monotonic()
        self.board.note(self.number, self.training.step, "evaluate")
        with self.comm.meter.off():
            yield
        spent = time.monotonic() - begin
        self.clock.paused += spent
        self.clock.evaluation += spent

    def end_event(self, event: str) -> None:
        """Wait until worker 0 has called its callbacks; end the run if one of them asked for it.

        Collective, where workers step together and there are such callbacks. Elsewhere worker 0
        stops alone, and its strategy lets the others know.
        """
        stops = self.reporter.stop is not None
        if event in self.reporter.events and self.comm.size > 1:
            stops = self._wait_for_callbacks(event, stops=stops)
        if stops and self.training.stopped == "epochs":
            self.training.stopped = "callback"

    def _wait_for_callbacks(self, event: str, *, stops: bool) -> bool:
        """Wait for worker 0, off the training clock; return whether the run ends. Collective.

        Otherwise the others would wait for worker 0 in their next exchange, and count that as
        training. After a step with an exchange all clocks go on from the latest: the workers had
        to meet anyway.
        """
        self.board.note(self.number, self.training.step, "agree")
        begin = time.monotonic()
        mine = self.clock.seconds(begin)
        with self.comm.meter.off():
            latest, stop = self.comm.maximum(np.array([mine, float(stops)])).tolist()
        meets = event == "on_step" and self.clock.has_exchanged
        self.clock.end_wait_for_callbacks(begin, latest if meets else mine)
        return bool(stop)
