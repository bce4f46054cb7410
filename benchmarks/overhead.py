"""What checkpoints and the watchdog cost a synchronous step: with and without, in one group.

Run under mpiexec: `python benchmarks/overhead.py --out FILE.json`. Both are the product's own
worker and take turns round by round. With: a note on the board at every phase, the question every
fourth step whether to stop, a checkpoint each round, and the thread that watches the host. Without:
none of these.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from against_ddp import COMM, in_memory, our_step, our_worker
from mpi4py import MPI

from manyhands.checkpoint import Every
from manyhands.heart import Heart
from manyhands.worker import Batch, Worker


class Silent:
    """A board that nobody reads, for workers that are not watched."""

    def note(self, rank: int, step: int, operation: str) -> None:
        """Note nothing."""


def rounds(worker: Worker, batches: list[Batch], folder: Path, options: argparse.Namespace) -> dict:
    """Return the seconds per step, round by round, with and without."""
    board, lifecycle, step = worker.board, worker.lifecycle, our_step(worker, talk=True)
    lifecycle.every = Every(steps=options.steps)
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(options.rounds):
        for name in times:
            on = name == "with"
            worker.board = board if on else Silent()
            heart = Heart(folder, COMM.size, folder, timeout=600.0)
            if on:
                heart.start()
            COMM.Barrier()
            begin = time.perf_counter()
            for i in range(options.steps):
                step(batches[i % len(batches)])
                if on:
                    lifecycle.after_step(worker)
            COMM.Barrier()
            times[name].append((time.perf_counter() - begin) / options.steps)
            if on:
                heart.stop()
            lifecycle.writer.wait()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100, help="steps of a round: one checkpoint")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shared = COMM.Split_type(MPI.COMM_TYPE_SHARED)
    folder = Path(shared.bcast(tempfile.mkdtemp(prefix="manyhands-") if shared.rank == 0 else None))
    worker, choice = our_worker(folder, options.batch_size)
    torch.backends.mkldnn.enabled = not choice.startswith("native")
    batches = in_memory(worker)
    times = rounds(worker, batches, folder, options)
    if COMM.rank == 0:
        result = {
            "workers": COMM.size,
            "batch_size": options.batch_size,
            "steps": options.steps,
            "milliseconds": {n: 1000 * statistics.median(t) for n, t in times.items()},
            "ratios": [w / o for w, o in zip(times["with"], times["without"], strict=True)],
        }
        options.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
