"""What happens to a run between two steps: checkpoints are written, a request to stop is heard.

Workers that step together must agree on both, or one would wait for ever: they add up a flag every
few steps, which costs microseconds.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from manyhands.checkpoint import Checkpoint, Part, Writer, parse_every
from manyhands.clock import Clock, Epoch
from manyhands.errors import StoppedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from manyhands.worker import Worker

AGREE_EVERY = 4  # steps between two questions whether to stop
_LISTS = ("begun", "computed", "entered", "exchanged", "updated")


class Lifecycle:
    """One worker's checkpoints and its ear for requests to stop.

    Args:
        output: The run's folder.
        about: What the run is, for the manifest: configuration, data hash, kernels.
    """

    def __init__(self, worker: Worker, output: Path, about: Mapping[str, Any]) -> None:
        config = worker.config
        self.about = about
        self.every = parse_every(config.checkpoint_every) if config.checkpoint_every else None
        self.writer = Writer(output, worker.rank, worker.comm.size, config.keep)
        self.written = time.monotonic()

    def after_step(self, worker: Worker) -> None:
        """Write a checkpoint if one is due; end the run if that was asked for.

        Raises:
            StoppedError: On every worker at the same step, after the checkpoint is on the disk.
        """
        asked, late = self._agreed(worker)
        steps = self.every.steps if self.every else None
        if late or asked or (steps and worker.step % steps == 0):
            self._write(worker)
        if asked:
            self.writer.wait()
            if worker.mechanism:
                worker.mechanism.close()
            if worker.config.strategy.supports.together:
                worker.comm.barrier()  # nobody ends the group before every part is on the disk
            raise StoppedError(asked, worker.step, checkpoint=self.every is not None)

    def _agreed(self, worker: Worker) -> tuple[int, bool]:
        """Return the signal that asks us to stop (0: none), and whether a checkpoint is late."""
        asked = worker.board.asked()
        if not worker.config.strategy.supports.together:
            return asked, False
        if worker.step % AGREE_EVERY:
            return 0, False
        seconds = self.every.seconds if self.every else None
        late = seconds is not None and time.monotonic() - self.written > seconds
        flags = worker.comm.maximum(np.array([asked, late and worker.rank == 0], dtype=np.int64))
        return int(flags[0]), bool(flags[1])

    def _write(self, worker: Worker) -> None:
        if self.every is None:
            return
        worker.board.note(worker.rank, worker.step, "checkpoint")
        about = {**self.about, "epoch": worker.epochs[-1].epoch}
        self.writer.write(worker.step, capture(worker), about)
        self.written = time.monotonic()


def capture(worker: Worker) -> Part:
    """Return a copy of all that this worker needs to go on, bit for bit.

    A private run's randomness is in no checkpoint: who goes on draws anew, and pays.
    """
    clock = worker.clock
    tensors = {"params": worker.params.clone()}
    if not worker.mechanism:
        tensors["random"] = torch.get_rng_state()
        tensors["losses"] = torch.tensor(worker.losses, dtype=torch.float64)
    tensors |= {f"buffer.{n}": b.clone() for n, b in worker.replica.module.named_buffers()}
    tensors |= {f"clock.{n}": torch.tensor(getattr(clock, n), dtype=torch.float64) for n in _LISTS}
    for index, state in enumerate(_optimizer_states(worker)):
        tensors |= {f"optimizer.{index}.{name}": value.clone() for name, value in state.items()}
    held, counts = worker.config.strategy.state(worker)
    tensors |= {f"strategy.{name}": value.clone() for name, value in held.items()}
    numbers = {
        "step": worker.step,
        "epochs": [asdict(epoch) for epoch in worker.epochs],
        "seconds": clock.seconds(),
        "evaluation": clock.evaluation,
        "facts": worker.facts,
        "strategy": counts,
        "privacy": worker.mechanism.spent() if worker.mechanism else {},
    }
    return Part(tensors, numbers)


def _optimizer_states(worker: Worker) -> list[dict[str, Tensor]]:
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
    _restore_optimizer(worker, tensors)
    if known and not worker.mechanism:
        torch.set_rng_state(tensors["random"])
    worker.step = int(numbers["step"])
    worker.epochs = [Epoch(**row) for row in numbers["epochs"]]
    if not known:
        worker.epochs = [Epoch(e.epoch, steps=e.steps, seconds=e.seconds) for e in worker.epochs]
    worker.facts = dict(numbers["facts"])
    worker.clock = Clock(evaluation=numbers["evaluation"], before=numbers["seconds"])
    if not resized:
        worker.losses = [None] * worker.step if worker.mechanism else tensors["losses"].tolist()
        for name in _LISTS:
            setattr(worker.clock, name, tensors[f"clock.{name}"].tolist())
    held = {n.removeprefix("strategy."): t for n, t in tensors.items() if n.startswith("strategy.")}
    worker.config.strategy.restore(worker, held, numbers["strategy"])


def _restore_optimizer(worker: Worker, tensors: Mapping[str, Tensor]) -> None:
    params = [p for group in worker.optimizer.param_groups for p in group["params"]]
    for index, param in enumerate(params):
        prefix = f"optimizer.{index}."
        state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        if state:
            worker.optimizer.state[param] = state
