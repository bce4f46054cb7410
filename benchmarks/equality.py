"""What it costs a step that P workers end where one ends: dropout masks, BatchNorm statistics.

Run under mpiexec: `python benchmarks/equality.py --out FILE.json`. Each pair of ways is one worker
of the product, and takes turns round by round:

- masks that belong to examples (`dropout.py`) against PyTorch's own dropout, for Dropout2d in the
  CNN and for dropout of single numbers in an MLP;
- BatchNorm over all workers (`--sync-batchnorm`) against BatchNorm of each worker's part.

Prints how many times as long a step takes with it, beside the quartiles over the rounds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from against_ddp import COMM, our_worker
from turns import Record, in_turns, parser, quartiles, record, seconds, write

from manyhands.strategies.sync.sync import Sync
from manyhands.worker.worker import Batch, Worker

MASKS, PLAIN = "masks of examples", "PyTorch's dropout"
SHARED, OWN = "statistics of all workers", "each worker's own"
BAR = (1.03, True)  # of a step with masks, against one with PyTorch's dropout


class Ready(NamedTuple):
    """One worker's part of an update, in memory, and which examples it has."""

    batch: Batch
    indices: np.ndarray


def in_memory(worker: Worker, count: int = 16) -> list[Ready]:
    """Return the first batches of this worker."""
    shares = [s for _, s in zip(range(count), worker.plan.epoch(1), strict=False)]
    return [
        Ready(
            Batch(*worker.data.train.batch(s.indices), s.examples / s.total, s.total, s.examples),
            s.indices,
        )
        for s in shares
    ]


def stepping(worker: Worker, batches: list[Ready], times: int) -> Callable[[], float]:
    """Return what times some steps of a worker, as its run would take them."""
    strategy = worker.config.strategy
    assert isinstance(strategy, Sync)

    def step(number: int) -> None:
        batch, indices = batches[number % len(batches)]
        worker.clock.begun.append(time.monotonic())
        worker.board.note(worker.rank, worker.step, "gradient")
        if worker.replica.masks:
            worker.replica.masks.begin(worker.step, indices)
        strategy.apply(worker, strategy.gradient(worker, batch))
        worker.end_step(worker.training.epochs[-1])

    return lambda: seconds(step, times, COMM.Barrier)


def compared(model: str, batch_size: int, rounds: int, times: int) -> Record:
    """Return the record of a model with its masks, or shared statistics, and without them."""
    normed = model == "cnn-batchnorm"
    folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
    worker, choice = our_worker(folder, batch_size, model, sync_batchnorm=normed)
    replica, timed = worker.replica, stepping(worker, in_memory(worker), times)
    masks, norms = replica.masks, replica.norms

    def without() -> float:
        replica.masks = replica.norms = None
        return timed()

    def with_it() -> float:
        replica.masks, replica.norms = masks, norms
        return timed()

    ours, theirs = (SHARED, OWN) if normed else (MASKS, PLAIN)
    found = in_turns({theirs: without, ours: with_it}, range(rounds))
    facts = {"workers": COMM.size, "batch_size": batch_size, "kernels": choice}
    if norms:
        facts["exchange_seconds"] = norms.seconds / (rounds * (times + 1))
    what = f"step, {model}, P={COMM.size}, batch {batch_size}"
    bars = {} if normed else {theirs: BAR}
    return record(what, found, unit="ms", ours=ours, bars=bars, **facts)


def line(made: Record) -> str:
    """Return a record in one line."""
    ((theirs, ratios),) = made["ratios"].items()
    longer = [1 / ratio for ratio in ratios]
    low, high = quartiles(longer)
    medians = made["medians"]
    return (
        f"{made['what']}: {made['ours']} {medians[made['ours']]:.3f} ms, {theirs} "
        f"{medians[theirs]:.3f} ms, {statistics.median(longer):.3f} times as long "
        f"({low:.3f} to {high:.3f})"
    )


def main() -> None:
    options = parser(__doc__, rounds=15, steps=40)
    options.add_argument("--batch-size", type=int, default=128)
    asked = options.parse_args()
    torch.set_num_threads(1)
    names = ("cnn", "mlp-dropout", "cnn-batchnorm")
    made = [compared(name, asked.batch_size, asked.rounds, asked.steps) for name in names]
    if COMM.rank == 0:
        write(asked.out, *made)
        print(*map(line, made), sep="\n")


if __name__ == "__main__":
    main()
