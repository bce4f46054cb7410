"""One private step: ours, Opacus', and ours without privacy; same model, batch and thread.

Run by itself: `python benchmarks/against_opacus.py --out FILE.json`. All get the same batches in
memory and take turns round by round: a noisy machine disturbs them alike. Ours is the product's own
worker, with its clock, board and ledger; Opacus' loop is bare. Both clip and add noise; neither
samples here, since that costs the same for all. Memory is measured in processes of their own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from mpi4py import MPI
from turns import in_time, in_turns, parser, record, seconds, write

from manyhands.config.options import configure
from manyhands.data import store
from manyhands.launch.status_board import BOARD_FILE, Board
from manyhands.model.kernels.tuning import _channels_last, switch
from manyhands.model.zoo import tanh_cnn
from manyhands.training.job import Job
from manyhands.training.process import build as assemble
from manyhands.worker.worker import Batch, Epoch, Worker

SIGMA, CLIP, LR, MOMENTUM = 1.23, 0.1, 0.5, 0.9
Step = Callable[[Batch], None]


def our_worker(
    folder: Path, batch_size: int, *, private: bool, secure: bool = False
) -> tuple[Worker, str]:
    """Build the product's own worker, with the kernels it chooses here."""
    given = {"strategy": "sequential", "workers": 1, "batch_size": batch_size, "epochs": 40}
    given |= {"lr": LR, "momentum": MOMENTUM, "model": "tanh-cnn"}
    if private:
        given |= {"private": True, "noise_multiplier": SIGMA, "clip": CLIP, "secure_noise": secure}
    folder.mkdir()
    Board(folder / BOARD_FILE, 1, create=True)
    job = Job(
        config=configure(given),
        model="tanh-cnn",
        loss=None,
        data=str(store("mnist", folder)),
        output=str(folder),
        name="bench",
        command="bench",
        launched=time.time(),
        threads=1,
    )
    worker, kernels = assemble.build_worker(job, MPI.COMM_SELF, folder)
    worker.training.epochs.append(Epoch(1))
    return worker, kernels.choice


def our_step(worker: Worker) -> Step:
    def step(batch: Batch) -> None:
        worker.clock.begun.append(time.monotonic())
        worker.board.note(worker.rank, worker.step, "gradient")
        worker.update(worker.gradient(batch))
        worker.end_step(worker.training.epochs[-1])

    return step


def opacus_step(batch_size: int, prepare: Callable[[torch.Tensor], torch.Tensor] | None) -> Step:
    """Return one step of Opacus as its tutorial has it."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.manual_seed(0)
    model = GradSampleModule(tanh_cnn())
    plain = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    optimizer = DPOptimizer(
        plain, noise_multiplier=SIGMA, max_grad_norm=CLIP, expected_batch_size=batch_size
    )

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        x = prepare(batch.x) if prepare else batch.x
        F.cross_entropy(model(x), batch.y).backward()
        optimizer.step()

    return step


def opacus_ghost_step(
    batch_size: int, prepare: Callable[[torch.Tensor], torch.Tensor] | None
) -> Step:
    """Return one step of Opacus with its ghost clipping: two passes back through the model."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    torch.manual_seed(0)
    model = GradSampleModuleFastGradientClipping(
        tanh_cnn(), max_grad_norm=CLIP, use_ghost_clipping=True
    )
    plain = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    optimizer = DPOptimizerFastGradientClipping(
        plain, noise_multiplier=SIGMA, max_grad_norm=CLIP, expected_batch_size=batch_size
    )
    criterion = DPLossFastGradientClipping(model, optimizer, torch.nn.CrossEntropyLoss())

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        x = prepare(batch.x) if prepare else batch.x
        criterion(model(x), batch.y).backward()
        optimizer.step()

    return step


def made(name: str, folder: Path, batch_size: int) -> tuple[str, Step, list[Batch]]:
    """Return one way: its kernels, its step, and the batches that all share."""
    private, secure = name != "without privacy", name == SECURE
    worker, choice = our_worker(folder, batch_size, private=private, secure=secure)
    count = batch_size * 8
    rows = torch.arange(count).view(8, batch_size)
    batches = [
        Batch(*worker.data.train.batch(part), 1.0, batch_size, batch_size) for part in rows
    ]  # fmt: skip
    if name.startswith("opacus"):
        choice = "default" if name.endswith("as it comes") else choice
        prepare = _channels_last if choice.endswith("channels-last") else None
        build = opacus_ghost_step if "ghost" in name else opacus_step
        return choice, build(batch_size, prepare), batches
    return choice, our_step(worker), batches


SECURE = "ours, --secure-noise"
WAYS = (
    "ours",
    SECURE,
    "without privacy",
    "opacus, our kernels",
    "opacus, ghost clipping, our kernels",
    "opacus as it comes",
)


def memory(name: str, batch_size: int, steps: int) -> None:
    """Print by how many bytes the largest resident set grows in a few steps of one way."""
    with tempfile.TemporaryDirectory() as folder:
        kernels, step, batches = made(name, Path(folder) / "run", batch_size)
        switch(kernels)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of tuning
        before = resident()
        for i in range(steps):
            step(batches[i % len(batches)])
        print(json.dumps(peak() - before))


def resident() -> int:
    return status("VmRSS")


def peak() -> int:
    return status("VmHWM")


def status(name: str) -> int:
    """Return a line of this process's status in bytes; its peak since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    options = parser(__doc__, rounds=15, steps=10)
    options.add_argument("--batch-size", type=int, default=512)
    options.add_argument("--memory", choices=WAYS, help="measure only this way's memory")
    asked = options.parse_args()
    warnings.filterwarnings("ignore", module="opacus")
    torch.set_num_threads(1)
    if asked.memory:
        memory(asked.memory, asked.batch_size, 5)
        return
    folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
    ways = {name: made(name, folder / str(i), asked.batch_size) for i, name in enumerate(WAYS)}

    def way(kernels: str, step: Step, batches: list[Batch]) -> Callable[[], float]:
        def timed() -> float:
            switch(kernels)
            return seconds(lambda i: step(batches[i % len(batches)]), asked.steps, lambda: None)

        return timed

    turns = {name: way(*of) for name, of in ways.items()}
    found = in_turns(turns, in_time(asked.rounds, asked.seconds))
    this = [sys.executable, __file__, "--batch-size", str(asked.batch_size), "--out", "-"]
    grown = {
        name: [
            json.loads(
                subprocess.run([*this, "--memory", name], check=True, capture_output=True).stdout
            )
        ]
        for name in ways
    }
    facts = {"batch_size": asked.batch_size, "kernels": {n: of[0] for n, of in ways.items()}}
    what = f"private step, tanh-cnn, batch {asked.batch_size}"
    bars = {
        "opacus, our kernels": (1.35, False),
        "opacus as it comes": (2.8, False),
        "without privacy": (1.05, True),
    }
    secure = {"ours": (1.1, True), "opacus, our kernels": (1.35, False)}
    limit = {"opacus, our kernels": (1.0, True)}
    write(
        asked.out,
        record(what, found, unit="ms", bars=bars, **facts),
        record(f"{what}, --secure-noise", found, unit="ms", bars=secure, ours=SECURE, **facts),
        record(f"peak memory of a {what}", grown, unit="MB", bars=limit, **facts),
    )


if __name__ == "__main__":
    main()
