"""One training step: ours, PyTorch DDP over gloo, and workers that never talk, in one group.

Run under mpiexec: `python benchmarks/against_ddp.py --batch-size 128 --out FILE.json`. All get the
same batches in memory and take turns round by round: a noisy machine disturbs them alike.
Ours is the product's own worker, with its clock, board, loss and accuracy; DDP's loop is bare.
"Our kernels" are those that ours chose by measuring: DDP's model computes with the very same.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from turns import in_turns, parser, record, seconds, write
from zoo import MODELS, criterion

from manyhands.config.options import configure
from manyhands.data import store
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.model.kernels import tuning
from manyhands.training.job import Job
from manyhands.training.process import build as assemble
from manyhands.worker.worker import Batch, Epoch, Worker

COMM = MPI.COMM_WORLD
WAITING = "the slowest at each step, never talk"  # for whom all would have to wait
BEST = {"gradient_as_bucket_view": True, "static_graph": True}
# At equal kernels, at its best or not; as it comes; against workers that never talk.
BARS = {
    ("cnn", 2, 128): (1.08, 2.1, 1.05),
    ("cnn", 2, 16): (1.9, 2.5, 1.10),
    ("cnn", 16, 128): (3.5, None, 1.10),
    ("cnn", 16, 1024): (1.6, None, 1.05),
    ("mlp-11m", 2, 64): (1.3, None, None),
    ("mlp-11m", 8, 256): (1.3, None, None),
    ("resnet-18", 2, 32): (1.0, None, None),
    ("resnet-18", 8, 128): (1.0, None, None),
}


def our_worker(
    folder: Path, batch_size: int, model: str = "cnn", **given: object
) -> tuple[Worker, str]:
    """Build the product's own worker, with the kernels it chooses here; `given`: more options."""
    config = configure(
        {"workers": COMM.size, "batch_size": batch_size, "lr": 0.01, "momentum": 0.5, **given}
    )
    Board(folder / BOARD_FILE, COMM.size, create=True)
    build, data = MODELS[model]
    job = Job(
        config=config,
        model=build,
        loss=criterion(model),
        data=str(store(data(), folder / "data")),
        output=str(folder),
        name="bench",
        command="bench",
        launched=time.time(),
        threads=1,
    )
    worker, kernels = assemble.build_worker(job, COMM, folder)
    worker.training.epochs.append(Epoch(1))
    return worker, kernels.choice


def in_memory(worker: Worker, count: int = 16) -> list[Batch]:
    """Return the first batches of this worker."""
    shares = [s for _, s in zip(range(count), worker.plan.epoch(1), strict=False)]
    return [
        Batch(*worker.data.train.batch(s.indices), s.examples / s.total, s.total, s.examples)
        for s in shares
    ]


def our_step(worker: Worker, *, talk: bool) -> Callable[[Batch], None]:
    """Return one step of the product's own worker; without `talk`, with its gradient alone."""

    def step(batch: Batch) -> None:
        worker.clock.begun.append(time.monotonic())
        worker.board.note(worker.rank, worker.step, "gradient")
        if talk:
            worker.config.strategy.step(worker, batch)
        else:
            worker.update(worker.gradient(batch))
        worker.end_step(worker.training.epochs[-1])

    return step


def ddp_step(name: str, kernels: str, **options: bool) -> Callable[[Batch], None]:
    """Return one step of DDP as its tutorial has it; `options` are DDP's own."""
    torch.manual_seed(0)
    module: nn.Module = MODELS[name][0]()
    _, prepare = tuning.install(module, kernels)
    loss = criterion(name)
    model = DistributedDataParallel(module, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        x = prepare(batch.x) if prepare else batch.x
        loss(model(x), batch.y).backward()
        optimizer.step()

    return step


def main() -> None:
    options = parser(__doc__, rounds=15, steps=40)
    options.add_argument("--batch-size", type=int, default=128)
    options.add_argument("--model", choices=MODELS, default="cnn")
    asked = options.parse_args()

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
    # A place that no run has used before: one that was broken off leaves its own behind.
    meeting = f"file://{COMM.bcast(folder)}/store"
    dist.init_process_group("gloo", init_method=meeting, rank=COMM.rank, world_size=COMM.size)
    worker, choice = our_worker(folder, asked.batch_size, asked.model)
    batches = in_memory(worker)
    steps: dict[str, tuple[str, Callable[[Batch], None]]] = {
        "ours": (choice, our_step(worker, talk=True)),
        "never talk": (choice, our_step(worker, talk=False)),
        "DDP, our kernels": (choice, ddp_step(asked.model, choice)),
        "DDP at its best, our kernels": (choice, ddp_step(asked.model, choice, **BEST)),
        "DDP as it comes": ("default", ddp_step(asked.model, "default")),
    }

    def way(kernels: str, step: Callable[[Batch], None]) -> Callable[[], float]:
        def timed() -> float:
            tuning.switch(kernels)
            return seconds(lambda i: step(batches[i % len(batches)]), asked.steps, COMM.Barrier)

        return timed

    def waiting() -> float:
        """Return the seconds of the slowest worker, at the mean of all steps, without talking."""
        tuning.switch(choice)
        step, times = steps["never talk"][1], np.empty(asked.steps)
        COMM.Barrier()
        for i in range(asked.steps):
            begin = time.perf_counter()
            step(batches[i % len(batches)])
            times[i] = time.perf_counter() - begin
        COMM.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
        return float(times.mean())

    ways = {name: way(*of) for name, of in steps.items()} | {WAITING: waiting}
    found = in_turns(ways, range(asked.rounds))
    if COMM.rank == 0:
        equal, comes, alone = BARS.get((asked.model, COMM.size, asked.batch_size), (None,) * 3)
        bars = {
            "DDP, our kernels": (equal, False),
            "DDP at its best, our kernels": (equal, False),
            "DDP as it comes": (comes, False),
            "never talk": (alone, True),
        }
        facts = {"workers": COMM.size, "batch_size": asked.batch_size, "kernels": choice}
        what = f"step, {asked.model}, P={COMM.size}, batch {asked.batch_size}"
        known = {name: bar for name, bar in bars.items() if bar[0] is not None}
        write(asked.out, record(what, found, unit="ms", bars=known, **facts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
