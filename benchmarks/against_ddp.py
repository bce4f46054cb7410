"""One training step: ours, PyTorch DDP over gloo, and workers that never talk, in one group.

Run under mpiexec: `python benchmarks/against_ddp.py --batch-size 128 --out FILE.json`. All get the
same batches in memory and take turns round by round: a noisy machine disturbs them alike.
Ours is the product's own worker, with its clock, board, loss and accuracy; DDP's loop is bare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

from manyhands import assemble
from manyhands.board import BOARD_FILE, Board
from manyhands.data import store
from manyhands.job import Job
from manyhands.models import cnn
from manyhands.options import configure
from manyhands.worker import Batch, Epoch, Worker

COMM = MPI.COMM_WORLD


def our_worker(folder: Path, batch_size: int) -> tuple[Worker, str]:
    """Build the product's own worker, with the kernels it chooses here."""
    config = configure(
        {"workers": COMM.size, "batch_size": batch_size, "lr": 0.01, "momentum": 0.5}
    )
    Board(folder / BOARD_FILE, COMM.size, create=True)
    job = Job(
        config=config,
        model="cnn",
        loss=None,
        data=str(store("mnist", folder)),
        output=str(folder),
        name="bench",
        command="bench",
        launched=time.time(),
        threads=1,
    )
    worker, kernels = assemble.worker(job, COMM, folder)
    worker.epochs.append(Epoch(1))
    return worker, kernels.choice


def in_memory(worker: Worker, count: int = 16) -> list[Batch]:
    """Return the first batches of this worker."""
    shares = [s for _, s in zip(range(count), worker.plan.epoch(1), strict=False)]
    return [
        Batch(*worker.data.train.batch(s.indices), s.examples / s.total, s.total, s.examples)
        for s in shares
    ]


def our_step(worker: Worker, *, talk: bool) -> Callable[[Batch], None]:
    def step(batch: Batch) -> None:
        worker.clock.begun.append(time.monotonic())
        worker.board.note(worker.rank, worker.step, "gradient")
        gradient = worker.gradient(batch)
        if talk:
            worker.allreduce(gradient)
        worker.update(gradient)
        worker._end_step(worker.epochs[-1])

    return step


def ddp_step(
    prepare: Callable[[torch.Tensor], torch.Tensor] | None, **options: bool
) -> Callable[[Batch], None]:
    """Return one step of DDP as its tutorial has it; `options` are DDP's own."""
    torch.manual_seed(0)
    model = DistributedDataParallel(cnn(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        x = prepare(batch.x) if prepare else batch.x
        F.nll_loss(model(x), batch.y).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
    store_file = f"file://{options.out.resolve()}.store"
    dist.init_process_group("gloo", init_method=store_file, rank=COMM.rank, world_size=COMM.size)
    worker, choice = our_worker(folder, options.batch_size)
    batches = in_memory(worker)
    prepare = worker.replica.prepare
    best = {"gradient_as_bucket_view": True, "static_graph": True}
    ways: dict[str, tuple[str, Callable[[Batch], None]]] = {
        "ours": (choice, our_step(worker, talk=True)),
        "never talk": (choice, our_step(worker, talk=False)),
        "ddp, our kernels": (choice, ddp_step(prepare)),
        "ddp at its best, our kernels": (choice, ddp_step(prepare, **best)),
        "ddp as it comes": ("default", ddp_step(None)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, (kernels, step) in ways.items():
            torch.backends.mkldnn.enabled = not kernels.startswith("native")
            step(batches[0])
            COMM.Barrier()
            begin = time.perf_counter()
            for i in range(options.steps):
                step(batches[i % len(batches)])
            COMM.Barrier()
            times[name].append((time.perf_counter() - begin) / options.steps)
    if COMM.rank == 0:
        result = {
            "workers": COMM.size,
            "batch_size": options.batch_size,
            "kernels": choice,
            "milliseconds": {n: 1000 * statistics.median(t) for n, t in times.items()},
            "ratios": {
                n: [t / o for t, o in zip(times[n], times["ours"], strict=True)] for n in times
            },
        }
        options.out.write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
