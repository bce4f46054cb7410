"""What a worker puts into its part of a checkpoint, and how it is restored from one."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from manyhands.config.user_file import source_location
from manyhands.errors import WorkerError
from manyhands.launch.machine import usage
from manyhands.worker import step_losses_and_times
from manyhands.worker.abilities import Checkpointable
from manyhands.worker.balancing import Balance
from manyhands.worker.checkpoint.folder_layout import Checkpoint, CheckpointPart
from manyhands.worker.clock import Clock, Epoch, Moment
from manyhands.worker.disk_backed_columns import TIMES

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.worker.worker import Worker

_STRATEGY = "strategy."  # begins the names of a strategy's tensors


def capture(worker: Worker) -> CheckpointPart:
    """Return a copy of all that this worker needs to go on, bit for bit.

    A private run's randomness is in no checkpoint: who goes on draws anew, and pays. Nor are the
    times of its steps, which tell how many examples they had.
    """
    clock, balance, written = worker.clock, worker.hook(Balance), {}
    training = worker.training
    mechanism = worker.computation.mechanism
    tensors, counts = capture_common(worker)  # first: it may complete the others
    tensors["params"] = _copy(worker.params)
    if not mechanism:
        tensors["random"] = torch.get_rng_state()
        if worker.params.is_cuda:
            tensors["random.cuda"] = torch.cuda.get_rng_state(worker.params.device)
        for name, column in step_losses_and_times.columns(worker).items():
            last, written[name] = column.state()
            tensors[name] = torch.from_numpy(last)
    tensors |= {f"buffer.{n}": _copy(b) for n, b in worker.replica.module.named_buffers()}
    kept = enumerate(training.kept)  # never written again
    tensors |= {f"kept.{i}": one.cpu() for i, one in kept if one is not None}
    tensors |= {f"moment.{i}": one.cpu() for i, one in enumerate(training.copies)}
    numbers = {
        "moments": [asdict(moment) for moment in training.moments],
        "stride": training.stride,
        "evaluated": training.evaluated,
        "step": worker.step,
        **training.epoch_file.state(training.epochs, worker.number, worker.step),
        "seconds": clock.seconds(),
        "evaluation": clock.evaluation,
        "callbacks": clock.callbacks,
        "processor": clock.processor(usage()),
        "costs": worker.comm.meter.as_dict(),
        "facts": worker.facts,
        "strategy": counts,
        "balance": balance.state() if balance else None,
        "privacy": mechanism.spent() if mechanism else {},
        "others_saw": training.others_saw,
        "written": written,
    }
    # Written later, while the worker goes on.
    return CheckpointPart(
        tensors, copy.deepcopy(numbers), (training.history.sync, training.epoch_file.sync)
    )


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy in the host's memory."""
    return tensor.detach().to("cpu", copy=True)


def capture_common(worker: Worker) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Return copies of the optimizer's and the strategy's tensors, and the strategy's numbers.

    Also for a user's own loop. Collective where workers step together.
    """
    strategy = worker.config.strategy
    held, numbers = strategy.state(worker) if isinstance(strategy, Checkpointable) else ({}, {})
    _check_state(strategy, held, numbers)
    live = optimizer_tensors(worker) | {f"{_STRATEGY}{n}": t for n, t in held.items()}
    return {name: _copy(tensor) for name, tensor in live.items()}, numbers


def _check_state(strategy: Any, held: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
    """Refuse a strategy's state that no checkpoint can hold, by its name and line."""
    for name, value in (*held.items(), *numbers.items()):
        fits = isinstance(value, torch.Tensor) if name in held else _is_json(value)
        if not fits:
            what = "tensors" if name in held else "numbers"
            raise WorkerError(
                f"strategy {strategy.name} ({source_location(type(strategy).state)}): state "
                f"returned a {type(value).__name__} as {name!r} among the {what}; expected tensors "
                "in the first dictionary, and numbers, texts and lists of them in the second"
            )


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def optimizer_tensors(worker: Worker) -> dict[str, Tensor]:
    """Return what the optimizer remembers of each parameter, live, by its name in a checkpoint."""
    states = worker.optimizer.state
    params = [p for group in worker.optimizer.param_groups for p in group["params"]]
    return {
        f"optimizer.{index}.{name}": torch.as_tensor(value)
        for index, param in enumerate(params)
        for name, value in states.get(param, {}).items()
    }


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
    if known and not mechanism:
        torch.set_rng_state(tensors["random"])
        if "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], worker.params.device)
    training.step = int(numbers["step"])
    training.epochs = [Epoch(**row) for row in numbers["epochs"]]
    if known and not resized:
        training.epoch_file.restore(numbers.get("epochs_before", {}), worker.number)
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
    training.moments = [Moment(**row) for row in numbers.get("moments", ())]
    copies = [f"moment.{i}" for i in range(len(training.moments))]
    training.copies = [tensors[n].to(worker.params.device) for n in copies if n in tensors]
    training.stride = numbers.get("stride", 1)  # older checkpoints do not tell
    training.evaluated = numbers.get("evaluated", 0.0)
    times = {name: getattr(worker.clock, name) for name in TIMES}  # empty so far
    worker.clock = Clock(evaluation=numbers["evaluation"], before=numbers["seconds"], **times)
    worker.clock.callbacks = numbers.get("callbacks", 0.0)  # older checkpoints do not tell
    if known:  # checkpoints of older versions do not tell
        user, system = numbers.get("processor", (0.0, 0.0))
        worker.clock.used = user, system
        worker.comm.meter.take(numbers.get("costs", {}))
    if not resized and not mechanism:
        step_losses_and_times.restore(worker, tensors, numbers.get("written", {}))
    restore_common(worker, tensors, numbers["strategy"])


def restore_common(
    worker: Worker, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
) -> None:
    """Give the optimizer and the strategy back what `capture_common` returned."""
    restore_optimizer(worker, tensors)
    strategy = worker.config.strategy
    if isinstance(strategy, Checkpointable):
        held = {n.removeprefix(_STRATEGY): t for n, t in tensors.items() if n.startswith(_STRATEGY)}
        strategy.restore(worker, held, numbers)


def restore_optimizer(worker: Worker, tensors: Mapping[str, Tensor]) -> None:
    """Give the optimizer back what it remembered, by the names of `optimizer_tensors`."""
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
