"""A step of your own loop: `mh.join`, PyTorch DDP over gloo, and workers that never talk.

Run under mpiexec: `python benchmarks/own_loop.py --model gpt --out FILE.json`. All compute with
PyTorch's own kernels on the same batches in memory and take turns round by round. Each worker has
one thread and `--batch-size` examples divided by the workers.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from turns import in_turns, parser, record, seconds, write
from zoo import MODELS, criterion

import manyhands as mh
from manyhands.data import Stored, store

COMM = MPI.COMM_WORLD
ALONE = "never talk"
BEST = {"gradient_as_bucket_view": True, "static_graph": True}
SAID = {
    "cnn": "CNN, 9,840 parameters",
    "gpt": "GPT, 4.2 million",
    "resnet-18": "ResNet-18, 11 million",
}
Batches = Iterator[tuple[Tensor, Tensor]]
Step = Callable[[Tensor, Tensor], object]


def build(model: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model and an optimizer, the same on every worker."""
    torch.manual_seed(0)
    module = MODELS[model][0]()
    return module, torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.5)


def plain(model: str, wrap: Callable[[nn.Module], nn.Module]) -> Step:
    """Return a step of PyTorch's usual loop, with the model inside what `wrap` makes of it."""
    module, optimizer = build(model)
    wrapped, loss = wrap(module), criterion(model)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(wrapped(x), y).backward()
        optimizer.step()

    return step


def joined(model: str, stack: ExitStack, **options: Any) -> Step:
    """Return a step of the same loop under `mh.join`."""
    module, optimizer = build(model)
    hands, loss = stack.enter_context(mh.join(module, optimizer, **options)), criterion(model)
    return lambda x, y: hands.step(loss(module(x), y))


def batches(model: str, batch_size: int) -> Batches:
    """Yield this worker's share of one batch after the other."""
    place = Path(COMM.bcast(tempfile.mkdtemp(prefix="manyhands-") if COMM.rank == 0 else None))
    folder = COMM.bcast(store(MODELS[model][1](), place / "data") if COMM.rank == 0 else None)
    train = Stored.open(folder).train
    share = batch_size // COMM.size
    own = torch.arange(COMM.rank * share, 16 * batch_size, batch_size)
    kept = [train.batch(torch.arange(begin, begin + share) % len(train)) for begin in own.tolist()]
    yield from cycle(kept)


def table(folder: Path) -> str:
    """Return the table of all records of this benchmark in a machine's folder, as Markdown."""
    lines = [
        "| model, workers, batch | `join` | DDP with its defaults | DDP at its best "
        "| no communication | `join` is … times as fast as DDP at its best (range), rounds |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("own-loop-*.json")):
        [each] = json.loads(path.read_text())["records"]
        ratios = each["ratios"]["DDP at its best"]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        model = each["what"].split(", ")[1]
        ways = ("ours", "DDP as it comes", "DDP at its best", ALONE)
        times = " | ".join(f"{each['medians'][name]:.3g} ms" for name in ways)
        what = f"{SAID[model]}, {each['workers']}, {each['batch_size']}"
        lines.append(f"| {what} | {times} | {ratio}, {len(ratios)} |")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rounds=9, steps=10)
    options.add_argument("--model", choices=MODELS, default="gpt")
    options.add_argument("--batch-size", type=int, default=128)
    asked = options.parse_args()
    torch.set_num_threads(1)
    place = COMM.bcast(tempfile.mkdtemp(prefix="manyhands-") if COMM.rank == 0 else None)
    dist.init_process_group("gloo", f"file://{place}/store", rank=COMM.rank, world_size=COMM.size)
    own = batches(asked.model, asked.batch_size)
    with ExitStack() as stack:
        steps = {
            "ours": joined(asked.model, stack),
            ALONE: plain(asked.model, lambda module: module),
            "DDP as it comes": plain(asked.model, DistributedDataParallel),
            "DDP at its best": plain(
                asked.model, lambda module: DistributedDataParallel(module, **BEST)
            ),
        }

        def way(step: Step) -> Callable[[], float]:
            return lambda: seconds(lambda _: step(*next(own)), asked.steps, COMM.Barrier)

        found = in_turns({name: way(step) for name, step in steps.items()}, range(asked.rounds))
    if COMM.rank == 0:
        what = f"own loop, {asked.model}, P={COMM.size}, batch {asked.batch_size}"
        facts = {"workers": COMM.size, "batch_size": asked.batch_size}
        bars = {ALONE: (1.03, True)} if asked.model == "gpt" and COMM.size == 16 else {}
        write(asked.out, record(what, found, unit="ms", bars=bars, **facts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
