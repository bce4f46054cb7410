"""What one worker sees: its batches, its gradient, its update, its group, its clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from manyhands.callbacks import EVENTS, tell
from manyhands.config.parse import Slow
from manyhands.data import Plan
from manyhands.data.prefetch import Ahead
from manyhands.errors import DivergedError
from manyhands.worker import evaluation
from manyhands.worker.clock import Clock, Epoch, Interval
from manyhands.worker.columns import Column, StepFile
from manyhands.worker.slowdown import slowed
from manyhands.worker.stopping import REACHED, Aim

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.allreduce.shared_memory import Through
    from manyhands.comm import Communicator
    from manyhands.comm.mpi import MPICommunicator
    from manyhands.config.run import RunConfig
    from manyhands.data import Stored, StreamPlan
    from manyhands.data.batch_tree import Tree
    from manyhands.data.plan import Shares
    from manyhands.launch.status_board import Board
    from manyhands.model.kernels.cuda_graphs import Graphs
    from manyhands.model.lr_schedule import Rate
    from manyhands.model.metrics import Metric
    from manyhands.model.replica import Loss, Replica
    from manyhands.privacy.mechanism import Mechanism
    from manyhands.privacy.sampling import Poisson
    from manyhands.strategies.hold import Hold
    from manyhands.worker.augment import Augment
    from manyhands.worker.balancing import Balance
    from manyhands.worker.checkpoint.lifecycle import Lifecycle


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


@dataclass(kw_only=True)
class Worker:
    """One of the hands: everything that a strategy needs, and nothing that names one.

    A strategy loops over `batches()`; evaluation and stopping happen there, between two batches.
    """

    config: RunConfig
    replica: Replica
    optimizer: torch.optim.Optimizer
    comm: Communicator
    plan: Plan | Poisson | StreamPlan
    data: Stored
    board: Board
    announce: Callable[[dict[str, Any]], None] | None = None  # rank 0's: tells the launcher
    silence: Interval = field(default_factory=Interval)  # since the last announcement
    clock: Clock = field(default_factory=Clock)
    epochs: list[Epoch] = field(default_factory=list)
    kept: list[Tensor | None] = field(default_factory=list)  # worker 0's copies, judged later
    losses: Column = field(default_factory=Column)  # None where a loss is unknown
    history: StepFile = field(default_factory=StepFile)  # of the losses and the clock
    spent: dict[str, float] = field(default_factory=dict)  # a master's seconds, by phase
    facts: dict[str, Any] = field(default_factory=dict)
    state: Any = None  # what the strategy keeps from step to step, if anything
    lifecycle: Lifecycle | None = None
    hold: Hold | None = None  # where worker 0 evaluates while the others would train
    balance: Balance | None = None
    graphs: Graphs | None = None  # on a GPU: its gradient and its update
    slow: Slow | None = None  # if this worker is to be slower than it could be
    mechanism: Mechanism | None = None  # a private run's: clips and adds noise
    metrics: tuple[Metric, ...] = ()
    aim: Aim = field(default_factory=Aim)
    augment: Augment | None = None
    callbacks: list[Any] = field(default_factory=list)  # worker 0's
    events: frozenset[str] = frozenset()  # for which all workers wait until callbacks are over
    keep_best: Callable[[Replica, Tensor], None] | None = None  # rank 0's: writes it down
    rate: Rate | None = None  # where the learning rate changes over the run
    planned: list[int] = field(default_factory=list)  # the steps of each worker, for the rate
    step: int = 0
    stopped: str = "epochs"
    number: int = -1  # its rank when the run began, by which board, log and record know it
    story: list[dict[str, Any]] = field(default_factory=list)  # whom the group has lost
    others_saw: bool = False  # examples that count were seen by some who are not there any more
    seen: list[float | None] = field(default_factory=list)  # of the epoch, when the step began

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
    def lr(self) -> float:
        """The learning rate of the last step, as the schedule has it."""
        group = self.optimizer.param_groups[0]
        factor = self.rate.at(max(0, self.step - 1)) if self.rate else 1.0
        return factor * float(group.get("initial_lr", group["lr"]))

    @property
    def params(self) -> Tensor:
        """The parameters, live; shape (dim,)."""
        return self.replica.params

    def batches(self) -> Iterator[Batch]:
        """Yield this worker's part of every update, until the run's last.

        Collective where workers step together: after each epoch all of them evaluate. Elsewhere
        worker 0 keeps a copy of the parameters, to be judged after training.
        """
        together = self.config.strategy.supports.together
        if together:
            self._agree_on_events()
            self.comm.barrier()
        self.clock.started = time.monotonic()
        for number in range(self.epochs[-1].epoch if self.epochs else 1, self.config.epochs + 1):
            if not self.epochs or self.epochs[-1].epoch < number:
                self.epochs.append(Epoch(number))
            epoch = self.epochs[-1]
            self._stop_at_last_step()  # a run that goes on may have done them all
            ahead = self._ahead(number, epoch.steps)
            for share in ahead:
                if self.stopped != "epochs":
                    break
                self.clock.begun.append(time.monotonic())
                self.seen = epoch.seen()
                self.board.note(self.number, self.step, "gradient")
                x, y = ahead.batch()
                if self.augment:
                    x, y = self.augment(x, y, self.step)
                if self.replica.masks:
                    self.replica.masks.begin(self.step, share.indices)
                yield Batch(x, y, share.examples / share.total, share.total, share.examples)
                self.end_step(epoch)
                self._wait_for_callbacks("on_step")
                if self.hold:
                    self.hold.wait()
                if self.balance:
                    self.balance.after_step(self, len(share.indices))
                if self.lifecycle:
                    self.lifecycle.after_step(self)
                self._stop_at_last_step()
            self.settle()
            epoch.seconds = self.clock.seconds()
            if together:
                self._judge(epoch)
            elif self.rank == 0 and self.stopped != "signal":
                self._keep(epoch)
            if self.stopped != "epochs":
                break
        if not together:
            self.clock.ended = time.monotonic()
            self.board.note(self.number, self.step, "done")  # to wait for others is not to hang

    def _ahead(self, number: int, start: int) -> Ahead[Any]:
        """Return the shares of an epoch from a step on, with their examples."""
        shares, train = self.plan.epoch(number, start, self.shares()), self.data.train
        # Speeds and deaths change what comes next; a stream has one batch at a time.
        known = isinstance(self.plan, Plan) and not self.balance
        known = known and self.config.on_failure != "continue" and train.device.type == "cpu"
        return Ahead(self.graphs or train, shares, train.width if known else None)

    def shares(self) -> Shares | None:
        """Return the workers' parts at each step of this epoch, where they are not fixed."""
        balance, before = self.balance, self.step - self.epochs[-1].steps
        return None if balance is None else lambda step: balance.at(before + step)

    def gradient(self, batch: Batch) -> Tensor:
        """Return the gradient of the batch's mean loss, times the batch's weight; shape (dim,).

        In a private run it is the noised mean of clipped gradients, and the loss stays unknown.
        """
        slow, weight = self.slow, batch.weight
        with slowed(slow, self.replica, batch.x, batch.y) if slow else nullcontext():
            if self.mechanism:
                self.mechanism.gradient(batch.x, batch.y, batch.examples)
                self.note_nothing(batch.examples)
            elif self.graphs and len(batch.x):
                self.graphs.gradient(batch.x, batch.y, self.step + 1)
                if self.graphs.full or self.comm.size > 1:
                    self.settle()  # a sum would wait for the gradient, and count it as its own time
            else:
                self.note_loss(self.replica.gradient(batch.x, batch.y, weight))
                weight = 1.0
        if weight != 1.0:
            self.replica.grad.mul_(weight)
        self.clock.computed.append(time.monotonic())
        return self.replica.grad

    def allreduce(self, vector: Tensor, algorithm: str = "auto") -> None:
        """Sum `vector` over the workers, in place."""
        self.board.note(self.number, self.step, "exchange")
        begin = time.monotonic()
        self.comm.allreduce(vector, algorithm)
        self.clock.exchange(begin, time.monotonic())

    def allreduce_through(self, vector: Tensor, algorithm: str, through: Through) -> None:
        """Sum `vector` over workers who share memory, and let `through` make new parameters of it.

        See `MPICommunicator.allreduce_through`; what `through` does is the update.
        """
        self.board.note(self.number, self.step, "exchange")
        begin = time.monotonic()
        comm = cast("MPICommunicator", self.comm)
        updating = comm.allreduce_through(vector, self.params, algorithm, through)
        self.clock.exchange(begin, time.monotonic() - updating)
        self.board.note(self.number, self.step, "update")

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Count what happens inside as exchange: the current step's, or else the last one's."""
        self.board.note(self.number, self.step, "exchange")
        begin = time.monotonic()
        yield
        self.clock.exchange(begin, time.monotonic())

    def update(self, gradient: Tensor) -> None:
        """Let the optimizer step along `gradient`, shortened where that is asked for."""
        self.board.note(self.number, self.step, "update")
        own = self.replica.grad
        if gradient is not own and gradient.data_ptr() != own.data_ptr():
            own.copy_(gradient)
        self.shorten(own)
        if self.rate:
            self.rate.set(self.optimizer, self.step)
        (self.graphs.update if self.graphs else self.optimizer.step)()

    def shorten(self, gradient: Tensor) -> None:
        """Scale `gradient` down to `clip_norm`, in place, where it is longer; shape (dim,)."""
        if self.config.clip_norm is not None:
            length = torch.linalg.vector_norm(gradient)
            gradient.mul_(torch.clamp(self.config.clip_norm / (length + 1e-6), max=1.0))

    def settle(self) -> None:
        """Wait for the GPU, where there is one, and note what its steps gave since the last time.

        Without this the host goes on while the GPU computes.
        """
        if self.graphs:
            for step, loss in self.graphs.settle():
                self.note_loss(loss, step)

    def note_loss(self, loss: Loss, step: int | None = None) -> None:
        """Note what a step gave, by default the current one; refuses a loss that is not finite."""
        if not math.isfinite(loss.mean):
            raise DivergedError(
                f"the loss is {loss.mean} at step {step or self.step + 1} of worker {self.rank}; "
                f"try a smaller learning rate than {self.lr:.3g}, or look for bad values in the "
                "data",
                rank=self.rank,
            )
        epoch = self.epochs[-1]
        epoch.loss = (epoch.loss or 0.0) + loss.mean * loss.examples
        epoch.correct = (epoch.correct or 0) + loss.correct if self.replica.classifies else None
        epoch.examples += loss.examples
        self.losses.append(loss.mean if loss.examples else None)

    def note_nothing(self, expected: float) -> None:
        """Note a step of so many examples, or so many expected, whose loss stays unknown here."""
        epoch = self.epochs[-1]
        epoch.loss = epoch.correct = None
        epoch.examples += expected
        self.losses.append(None)

    def guard(self, mean: Tensor, examples: float) -> None:
        """Make a mean over all workers' pushes fit to be used: a private run's lacks its noise.

        Args:
            mean: Any part of the vector.
            examples: How many stand behind it, as the pushes state them.
        """
        if self.mechanism:
            self.mechanism.guard(mean, examples)

    def end_step(self, epoch: Epoch) -> None:
        """Count a step that is over."""
        self.clock.end_step()
        self.step += 1
        epoch.steps += 1
        if self.announce and self.silence.over():
            self.announce(epoch.status(self.step, self.plan.steps(epoch.epoch)))
        if self.callbacks:
            # On a GPU the loss is known only when somebody waits for it.
            loss = self.losses[-1] if self.losses and not self.graphs else None
            about = {"step": self.step, "epoch": epoch.epoch, "loss": loss, "lr": self.lr}
            with self.clock.calling_back():
                tell(self.callbacks, "on_step", about)

    def _judge(self, epoch: Epoch) -> None:
        """Judge the model, all workers together."""
        with self.evaluating():
            if self.config.strategy.supports.identical:
                evaluation.compare_replicas(self)
            evaluation.average_buffers(self)
            strategy: Any = self.config.strategy
            params = strategy.consensus(self)
            evaluation.judge(self, epoch, params)
            self.stopped = self.aim.over(self.epochs) or self.stopped
            seen = self.comm.gather(epoch.seen())
            self._announce(epoch, seen)
        self._end_epoch(epoch, seen)
        self._wait_for_callbacks("on_epoch")

    def _keep(self, epoch: Epoch) -> None:
        """Keep a copy to judge later, or judge it now if the run may have to stop."""
        with self.evaluating():
            evaluation.keep(self, epoch)
            self._announce(epoch, [epoch.seen()])
        self._end_epoch(epoch, [epoch.seen()])

    def _stop_at_last_step(self) -> None:
        if self.mechanism and self.mechanism.last is not None and self.step >= self.mechanism.last:
            self.stopped = "budget"
        if self.config.max_steps is not None and self.step >= self.config.max_steps:
            self.stopped = "max_steps"

    @property
    def best(self) -> Epoch | None:
        """The best epoch so far, where something is kept aside to judge by."""
        return self.aim.best(self.epochs)

    @property
    def early(self) -> bool:
        """Whether the run ends because of how the model does."""
        return self.stopped in (*REACHED, "patience")

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Keep what happens inside off the training clock and off the meter."""
        begin = time.monotonic()
        self.board.note(self.number, self.step, "evaluate")
        with self.comm.meter.off():
            yield
        spent = time.monotonic() - begin
        self.clock.paused += spent
        self.clock.evaluation += spent

    def _announce(self, epoch: Epoch, workers: list[Any]) -> None:
        if self.announce:
            self.silence.begin()
            self.announce({**asdict(epoch), "workers": workers})

    def _end_epoch(self, epoch: Epoch, workers: list[Any]) -> None:
        if self.callbacks:
            with self.clock.calling_back():
                row = epoch.row(self.step, workers[: self.config.workers])
                tell(self.callbacks, "on_epoch", row)

    def _agree_on_events(self) -> None:
        """Find out for which events worker 0 has callbacks. Collective."""
        mine = [any(getattr(one, event, None) for one in self.callbacks) for event in EVENTS]
        with self.comm.meter.off():
            known = self.comm.maximum(np.array(mine, dtype=np.int64))
        self.events = frozenset(event for event, there in zip(EVENTS, known, strict=True) if there)

    def _wait_for_callbacks(self, event: str) -> None:
        """Wait until worker 0 has called its callbacks, off the training clock.

        Collective, where workers step together and there are such callbacks. Otherwise the others
        would wait for worker 0 in their next exchange, and count that as training. After a step
        with an exchange all clocks go on from the latest: the workers had to meet anyway.
        """
        if event not in self.events or self.comm.size == 1:
            return
        self.board.note(self.number, self.step, "agree")
        begin = time.monotonic()
        mine = self.clock.seconds(begin)
        with self.comm.meter.off():
            latest = float(self.comm.maximum(np.array([mine]))[0])
        meets = event == "on_step" and self.clock.has_exchanged
        self.clock.end_wait_for_callbacks(begin, latest if meets else mine)
