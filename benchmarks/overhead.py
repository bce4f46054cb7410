"""What checkpoints and the watchdog cost a synchronous step: with and without, in one group.

Run under mpiexec: `python benchmarks/overhead.py --out FILE.json`. Both are the product's own
worker and take turns round by round. With: a note on the board at every phase, the question every
fourth step whether to stop, a checkpoint each round, and the thread that watches the host. Without:
none of these.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from against_ddp import COMM, in_memory, our_step, our_worker
from mpi4py import MPI
from turns import in_turns, parser, record, seconds, write

from manyhands.config.parse import Every
from manyhands.launch.host_watchdog import HostWatchdog
from manyhands.worker.checkpoint.save_or_stop import Lifecycle
from manyhands.worker.worker import Batch, Worker


class Silent:
    """A board that nobody reads, for workers that are not watched."""

    def note(self, rank: int, step: int, operation: str) -> None:
        """Note nothing."""


def ways(
    worker: Worker, batches: list[Batch], folder: Path, steps: int
) -> dict[str, Callable[[], float]]:
    """Return the seconds per step with all of it and without."""
    board, lifecycle, step = worker.board, worker.hook(Lifecycle), our_step(worker, talk=True)
    assert lifecycle
    lifecycle.every = Every(steps=steps)

    def without() -> float:
        worker.board = Silent()
        taken = seconds(lambda i: step(batches[i % len(batches)]), steps, COMM.Barrier)
        worker.board = board
        return taken

    def watched(number: int) -> None:
        step(batches[number % len(batches)])
        lifecycle.after_step(worker)

    def with_all() -> float:
        heart = HostWatchdog(folder, COMM.size, folder, timeout=600.0)
        heart.start()
        taken = seconds(watched, steps, COMM.Barrier)
        heart.stop()
        lifecycle.writer.wait()
        return taken

    return {"without": without, "with": with_all}


def main() -> None:
    options = parser(__doc__, rounds=15, steps=100)
    options.add_argument("--batch-size", type=int, default=128)
    asked = options.parse_args()
    torch.set_num_threads(1)
    shared = COMM.Split_type(MPI.COMM_TYPE_SHARED)
    folder = Path(shared.bcast(tempfile.mkdtemp(prefix="manyhands-") if shared.rank == 0 else None))
    worker, choice = our_worker(folder, asked.batch_size)
    found = in_turns(ways(worker, in_memory(worker), folder, asked.steps), range(asked.rounds))
    if COMM.rank == 0:
        what = f"step with checkpoints and watchdog, P={COMM.size}, batch {asked.batch_size}"
        bars = {"without": (1.02, True)}
        facts = {"workers": COMM.size, "batch_size": asked.batch_size, "kernels": choice}
        write(asked.out, record(what, found, unit="ms", ours="with", bars=bars, **facts))


if __name__ == "__main__":
    main()
