"""What a worker puts into its part of a checkpoint, and how it is restored from one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from manyhands.launch.machine import usage
from manyhands.worker import step_history
from manyhands.worker.abilities import Checkpointable
from manyhands.worker.balancing import Balance
from manyhands.worker.checkpoint.format import Checkpoint, CheckpointPart
from manyhands.worker.clock import Clock, Epoch
from manyhands.worker.columns import TIMES

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.worker.worker import Worker


def capture(worker: Worker) -> CheckpointPart:
    """Return a copy of all that this worker needs to go on, bit for bit.

    A private run's randomness is in no checkpoint: who goes on draws anew, and pays. Nor are the
    times of its steps, which tell how many examples they had.
    """
    clock, balance, written = worker.clock, worker.hook(Balance), {}
    mechanism = worker.computation.mechanism
    held, counts = strategy_state(worker)  # first: it may complete the others
    tensors = {"params": _copy(worker.params)}
    if not mechanism:
        tensors["random"] = torch.get_rng_state()
        if worker.params.is_cuda:
            tensors["random.cuda"] = torch.cuda.get_rng_state(worker.params.device)
        for name, column in step_history.columns(worker).items():
            last, written[name] = column.state()
            tensors[name] = torch.from_numpy(last)
    tensors |= {f"buffer.{n}": _copy(b) for n, b in worker.replica.module.named_buffers()}
    kept = enumerate(worker.training.kept)  # never written again
    tensors |= {f"kept.{i}": one.cpu() for i, one in kept if one is not None}
    for index, state in enumerate(optimizer_states(worker)):
        tensors |= {f"optimizer.{index}.{name}": _copy(value) for name, value in state.items()}
    tensors |= {f"strategy.{name}": _copy(value) for name, value in held.items()}
    numbers = {
        "step": worker.step,
        "epochs": [asdict(epoch) for epoch in worker.training.epochs],
        "seconds": clock.seconds(),
        "evaluation": clock.evaluation,
        "callbacks": clock.callbacks,
        "processor": clock.processor(usage()),
        "costs": worker.comm.meter.as_dict(),
        "facts": worker.facts,
        "strategy": counts,
        "balance": balance.state() if balance else None,
        "privacy": mechanism.spent() if mechanism else {},
        "others_saw": worker.training.others_saw,
        "written": written,
    }
    # Written later, while the worker goes on.
    return CheckpointPart(tensors, copy.deepcopy(numbers), worker.training.history.sync)


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
    training, mechanism = worker.training, worker.computation.mechanism
    resized = checkpoint.about["processes"] != worker.comm.size
    known = worker.rank < checkpoint.about["processes"]
    part = checkpoint.part(worker.rank if known else 0)
    tensors, numbers = part.tensors, part.numbers
    with torch.no_grad():
        worker.params.copy_(tensors["params"])
        for name, buffer in worker.replica.module.named_buffers():
            buffer.copy_(tensors[f"buffer.{name}"])
    restore_optimizer(worker, tensors)
    if known and not mechanism:
        torch.set_rng_state(tensors["random"])
        if "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], worker.params.device)
    training.step = int(numbers["step"])
    training.epochs = [Epoch(**row) for row in numbers["epochs"]]
    if not known:
        training.epochs = [
            Epoch(e.epoch, steps=e.steps, seconds=e.seconds) for e in training.epochs
        ]
    # A private run counts the examples that are expected, whoever drew them.
    training.others_saw = not mechanism and (resized or bool(numbers.get("others_saw")))
    worker.facts = dict(numbers["facts"])
    balance = worker.hook(Balance)
    if balance and numbers.get("balance"):
        balance.restore(numbers["balance"], training.step)
        worker.facts["shares"] = balance.history
    numbers_kept = [int(n.removeprefix("kept.")) for n in tensors if n.startswith("kept.")]
    held = {i: tensors[f"kept.{i}"].to(worker.params.device) for i in numbers_kept}
    training.kept = [held.get(i) for i in range(max(numbers_kept, default=-1) + 1)]
    times = {name: getattr(worker.clock, name) for name in TIMES}  # empty so far
    worker.clock = Clock(evaluation=numbers["evaluation"], before=numbers["seconds"], **times)
    worker.clock.callbacks = numbers.get("callbacks", 0.0)  # older checkpoints do not tell
    if known:  # checkpoints of older versions do not tell
        user, system = numbers.get("processor", (0.0, 0.0))
        worker.clock.used = user, system
        worker.comm.meter.take(numbers.get("costs", {}))
    if not resized and not mechanism:
        step_history.restore(worker, tensors, numbers.get("written", {}))
    own = {n.removeprefix("strategy."): t for n, t in tensors.items() if n.startswith("strategy.")}
    restore_strategy(worker, own, numbers["strategy"])


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


def strategy_state(worker: Worker) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Return what the strategy has for a checkpoint. Collective where workers step together."""
    strategy = worker.config.strategy
    return strategy.state(worker) if isinstance(strategy, Checkpointable) else ({}, {})


def restore_strategy(
    worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
) -> None:
    """Give the strategy back what `strategy_state` returned."""
    strategy = worker.config.strategy
    if isinstance(strategy, Checkpointable):
        strategy.restore(worker, tensors, numbers)
