"""What happens to a run between two steps: checkpoints are written, a request to stop is heard.

Workers that step together must agree on both, or one would wait for ever: they add up a flag every
few steps, about four times a second, so that those who exchange nothing else hardly wait for each
other. Where they do not step together, their strategy finds a moment (`pause`).
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from manyhands.checkpoint import Checkpoint, Part, Writer, parse_every
from manyhands.clock import Clock, Epoch
from manyhands.errors import StoppedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from manyhands.worker import Worker

AGREE_EVERY = 4  # steps between two questions whether to stop, at the least …
_AT_MOST, _SECONDS = 64, 0.25  # … and at the most; between these as many as take so long
_LISTS = ("begun", "computed", "entered", "exchanged", "updated", "waited")


class Mark(NamedTuple):
    """A checkpoint that workers who do not step together agree on.

    `step` names it: the steps done by then, on the average over the workers. A `signum` says that
    it is the last: the run stops with it, as that signal asked.
    """

    step: int
    signum: int = 0


class Lifecycle:
    """One worker's checkpoints and its ear for requests to stop.

    Args:
        output: The run's folder.
        about: What the run is, for the manifest: configuration, data hash, kernels.

    Attributes:
        mark: The last checkpoint that this process took part in, or goes on from.
    """

    def __init__(self, worker: Worker, output: Path, about: Mapping[str, Any]) -> None:
        config = worker.config
        self.about, self.output = about, output
        self.every = parse_every(config.checkpoint_every) if config.checkpoint_every else None
        self.writer = self._writer(worker)
        self.written = time.monotonic()
        self.mark = Mark(0)
        self._ask: int | None = None  # the step of the next question, the same on all workers
        self._asked = (0, 0.0)  # the step of the last one, and when that was

    def _writer(self, worker: Worker) -> Writer:
        patience = 2 * worker.config.timeout  # whoever hangs is told of before
        return Writer(self.output, worker.rank, worker.comm.size, worker.config.keep, patience)

    def renew(self, worker: Worker) -> None:
        """Write for a group that has become smaller, from now on. Collective.

        A checkpoint under way may lack the parts of those who are gone: it is given up.
        """
        self.writer.give_up()
        # Nobody writes for the old group any more; the next one has a name that nobody has used.
        self.mark = Mark(int(worker.comm.maximum(np.array([self.mark.step]))[0]))
        self._ask = None
        self.writer = self._writer(worker)
        options = {**self.about["options"], "workers": worker.config.workers}
        self.about = {**self.about, "options": options}

    def after_step(self, worker: Worker) -> None:
        """Write a checkpoint if one is due; end the run if that was asked for.

        Raises:
            StoppedError: On every worker at the same step, after the checkpoint is on the disk;
                where they do not step together and no checkpoints are written, at once.
        """
        strategy = worker.config.strategy
        if not strategy.supports.together and self.every:
            strategy.pause(worker)
            return
        asked, late = self._agreed(worker)
        steps = self.every.steps if self.every else None
        if late or asked or (steps and worker.step % steps == 0):
            self._write(worker)
        if asked:
            self._wait(worker)
            if worker.mechanism:
                worker.mechanism.close()
            if strategy.supports.together:
                worker.comm.barrier()  # nobody ends the group before every part is on the disk
            raise StoppedError(asked, worker.step, checkpoint=self.every is not None)

    def _wait(self, worker: Worker) -> None:
        """Wait until what is being written is on the disk.

        The first waits for everybody's parts. Where workers may die it asks them first: what lacks
        the part of one who is gone would be waited for in vain.
        """
        if worker.config.on_failure == "continue":
            if worker.rank:
                self.writer.wait()
            worker.comm.barrier()
        self.writer.wait()

    def _agreed(self, worker: Worker) -> tuple[int, bool]:
        """Return the signal that asks us to stop (0: none), and whether a checkpoint is late."""
        asked = worker.board.asked()
        if not worker.config.strategy.supports.together:
            return asked, False
        if self._ask is None:
            self._ask = worker.step - 1 + AGREE_EVERY
            self._asked = (worker.step, time.monotonic())
        if worker.step < self._ask:
            return 0, False
        worker.board.note(worker.number, worker.step, "agree")
        step, before = self._asked
        self._asked = (worker.step, time.monotonic())
        pace = (self._asked[1] - before) / max(1, worker.step - step)  # seconds per step
        flags = np.array([asked, self._late() and worker.rank == 0, 1e6 * pace], dtype=np.int64)
        asked, late, slowest = worker.comm.maximum(flags).tolist()
        self._ask = worker.step + steps_between(slowest / 1e6)
        return asked, bool(late)

    def _late(self) -> bool:
        seconds = self.every.seconds if self.every else None
        return seconds is not None and time.monotonic() - self.written > seconds

    def _write(self, worker: Worker) -> None:
        if self.every is not None:
            worker.settle()
            self.take(worker, Mark(worker.step), capture(worker))

    def due(self, step: int, asked: int) -> Mark | None:
        """Return the checkpoint that workers who do not step together should begin now, if any.

        Args:
            step: The steps done so far, on the average over the workers.
            asked: The signal that asks the run to stop, or 0.
        """
        if self.every is None or step <= self.mark.step:  # its name must be a new one
            return None
        steps = self.every.steps
        passed = steps is not None and step // steps > self.mark.step // steps
        return Mark(step, asked) if asked or passed or self._late() else None

    def take(self, worker: Worker, mark: Mark, part: Part | None = None) -> None:
        """Begin to write this process's part of a checkpoint; after the last one, stop."""
        worker.board.note(worker.number, worker.step, "checkpoint")
        about = {**self.about, "epoch": worker.epochs[-1].epoch if worker.epochs else 0}
        self.writer.write(mark.step, part or capture(worker), about)
        self.written = time.monotonic()
        self.mark = mark
        if mark.signum:
            worker.stopped = "signal"
        if worker.clock.ended is not None:  # done, and only here because others are not
            worker.board.note(worker.number, worker.step, "done")

    def end(self, worker: Worker) -> None:
        """Wait for what is being written. Collective where a signal stopped the run.

        Raises:
            StoppedError: On every process, after the last checkpoint is on the disk.
        """
        self._wait(worker)
        if self.mark.signum:
            worker.comm.barrier()  # nobody ends the group before every part is on the disk
            raise StoppedError(self.mark.signum, self.mark.step, checkpoint=True)


def steps_between(pace: float) -> int:
    """Return after how many steps to agree again, where the slowest worker's take `pace` seconds.

    >>> [steps_between(pace) for pace in (0.001, 0.01, 1.0)]
    [64, 25, 4]
    """
    return max(AGREE_EVERY, min(_AT_MOST, int(_SECONDS / max(pace, 1e-6))))


def capture(worker: Worker) -> Part:
    """Return a copy of all that this worker needs to go on, bit for bit.

    A private run's randomness is in no checkpoint: who goes on draws anew, and pays. Nor are the
    times of its steps, which tell how many examples they had.
    """
    clock = worker.clock
    tensors = {"params": _copy(worker.params)}
    if not worker.mechanism:
        tensors["random"] = torch.get_rng_state()
        if worker.params.is_cuda:
            tensors["random.cuda"] = torch.cuda.get_rng_state(worker.params.device)
        losses = [math.nan if loss is None else loss for loss in worker.losses]  # None: unknown
        tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
        for name in _LISTS:
            tensors[f"clock.{name}"] = torch.tensor(getattr(clock, name), dtype=torch.float64)
    tensors |= {f"buffer.{n}": _copy(b) for n, b in worker.replica.module.named_buffers()}
    kept = enumerate(worker.kept)  # never written again
    tensors |= {f"kept.{i}": one.cpu() for i, one in kept if one is not None}
    for index, state in enumerate(optimizer_states(worker)):
        tensors |= {f"optimizer.{index}.{name}": _copy(value) for name, value in state.items()}
    held, counts = worker.config.strategy.state(worker)
    tensors |= {f"strategy.{name}": _copy(value) for name, value in held.items()}
    numbers = {
        "step": worker.step,
        "epochs": [asdict(epoch) for epoch in worker.epochs],
        "seconds": clock.seconds(),
        "evaluation": clock.evaluation,
        "facts": worker.facts,
        "strategy": counts,
        "balance": worker.balance.state() if worker.balance else None,
        "privacy": worker.mechanism.spent() if worker.mechanism else {},
    }
    return Part(tensors, copy.deepcopy(numbers))  # written later, while the worker goes on


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy in the host's memory."""
    return tensor.detach().to("cpu", copy=True)


def optimizer_states(worker: Worker) -> list[dict[str, Tensor]]:
    """Return what the optimizer remembers of each parameter, in the parameters' order."""
    states = worker.optimizer.state
    params = [p for group in worker.optimizer.param_groups for p in group["params"]]
    return [{n: torch.as_tensor(v) for n, v in states.get(p, {}).items()} for p in params]


def restore(worker: Worker, checkpoint: Checkpoint) -> None:
    """Put the worker where it was when the checkpoint was written.

    Where the group has another size (the strategy allows it: all replicas are the same), a new
    worker takes over rank 0's part, with random numbers of its own, and the history by step is
    left behind.
    """
    resized = checkpoint.about["processes"] != worker.comm.size
    known = worker.rank < checkpoint.about["processes"]
    part = checkpoint.part(worker.rank if known else 0)
    tensors, numbers = part.tensors, part.numbers
    with torch.no_grad():
        worker.params.copy_(tensors["params"])
        for name, buffer in worker.replica.module.named_buffers():
            buffer.copy_(tensors[f"buffer.{name}"])
    restore_optimizer(worker, tensors)
    if known and not worker.mechanism:
        torch.set_rng_state(tensors["random"])
        if "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], worker.params.device)
    worker.step = int(numbers["step"])
    worker.epochs = [Epoch(**row) for row in numbers["epochs"]]
    if not known:
        worker.epochs = [Epoch(e.epoch, steps=e.steps, seconds=e.seconds) for e in worker.epochs]
    worker.facts = dict(numbers["facts"])
    if worker.balance and numbers.get("balance"):
        worker.balance.restore(numbers["balance"], worker.step)
        worker.facts["shares"] = worker.balance.history
    numbers_kept = [int(n.removeprefix("kept.")) for n in tensors if n.startswith("kept.")]
    held = {i: tensors[f"kept.{i}"].to(worker.params.device) for i in numbers_kept}
    worker.kept = [held.get(i) for i in range(max(numbers_kept, default=-1) + 1)]
    worker.clock = Clock(evaluation=numbers["evaluation"], before=numbers["seconds"])
    if not resized and not worker.mechanism:
        losses = tensors["losses"].tolist()
        worker.losses = [None if math.isnan(loss) else loss for loss in losses]
        for name in _LISTS:
            setattr(worker.clock, name, tensors[f"clock.{name}"].tolist())
    own = {n.removeprefix("strategy."): t for n, t in tensors.items() if n.startswith("strategy.")}
    worker.config.strategy.restore(worker, own, numbers["strategy"])


def restore_optimizer(worker: Worker, tensors: Mapping[str, Tensor]) -> None:
    """Give the optimizer back what it remembered, by the names that `capture` uses."""
    groups = worker.optimizer.param_groups
    params = [(p, group.get("capturable", False)) for group in groups for p in group["params"]]
    for index, (param, capturable) in enumerate(params):
        prefix = f"optimizer.{index}."
        state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        if state:
            worker.optimizer.state[param] = {
                # torch's optimizers count their steps in the host's memory, unless told otherwise.
                n: t if n == "step" and not capturable else t.to(param.device)
                for n, t in state.items()
            }
